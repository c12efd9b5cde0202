/* backend.hpp: the classes between torch.distributed and libmooncake_pg: process context, group, work, backend, process
 * group.
 *
 * They convert types and lifetimes and decide nothing: whatever an operation, a view or a failure means is the
 * library's business, and the only header of ours that is included is mooncake/pg.h. Nothing here may keep a Python
 * object, and no destructor may block on a peer, except shutdown paths, which run without the GIL.
 */
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mooncake/pg.h"

namespace mooncake_torch {

/* Reaches Python as mooncake.pg.MooncakeError, a DistBackendError with a .code. */
class Error : public c10::DistBackendError {
  public:
    Error(mcpg_status_t status, const std::string &text);
    const mcpg_status_t status;
};

/* Releases the GIL if this thread holds it: shutdown is reached with it, without it, and after the interpreter is gone.
 */
class WithoutGil {
  public:
    WithoutGil();
    ~WithoutGil();
    WithoutGil(const WithoutGil &) = delete;
    WithoutGil &operator=(const WithoutGil &) = delete;

  private:
    void *saved_;
};

/* What the module functions set before the first group; read when a context is made. */
struct Settings {
    std::mutex mutex;
    std::string host_ip;
    mcpg_timers_t timers = {};
};
Settings &settings();

/* The Store behind torch's own prefixes, as the library's key-value callbacks. The connection is its own.
 */
class StoreKv {
  public:
    explicit StoreKv(c10::intrusive_ptr<c10d::Store> base);
    mcpg_kv_t callbacks();

  private:
    static mcpg_status_t get(void *user, const char *key, void *value, size_t cap, size_t *len_out,
                             uint32_t timeout_ms);
    static mcpg_status_t set(void *user, const char *key, const void *value, size_t len);
    static mcpg_status_t compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                     const void *desired, size_t desired_len, void *value, size_t cap, size_t *len_out);
    static mcpg_status_t add(void *user, const char *key, int64_t delta, int64_t *value_out);
    c10d::Store &own();
    std::mutex mutex_;
    const c10::intrusive_ptr<c10d::Store> base_;
    c10::intrusive_ptr<c10d::Store> own_;
};

struct Event {
    mcpg_event_kind_t kind;
    std::string group;
    uint64_t epoch;
    uint32_t global_rank;
    mcpg_rank_state_t state;
};
/* A bounded queue of events for one iterator; the oldest are dropped. */
class EventQueue {
  public:
    void push(const Event &event);
    void close();
    /* False when nothing came within timeout_s (negative: no limit) or the queue was closed and is empty. */
    bool pop(double timeout_s, Event *out);
    bool closed();

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Event> events_;
    bool closed_ = false;
};
std::shared_ptr<EventQueue> subscribe();

/* The one mcpg_context_t of this process. It lives from the first group's creation to the last one's shutdown. */
class Context {
  public:
    struct Founder {
        uint32_t global_rank;
        bool may_host;
        uint64_t connect_timeout_us;
        c10::intrusive_ptr<c10d::Store> base_store;
    };
    /* Makes the context if there is none. Every acquire and every non-NULL try_acquire needs one release. */
    static Context *acquire(const Founder &founder);
    static Context *try_acquire();
    static void release(Context *context);

    mcpg_context_t *handle() const { return handle_; }
    std::string error() const;
    void name_group(const mcpg_group_t *group, const std::string &name);
    void forget_group(const mcpg_group_t *group);

  private:
    explicit Context(const Founder &founder);
    ~Context();
    static void on_event(void *user, const mcpg_event_t *event);
    StoreKv kv_;
    mcpg_context_t *handle_ = nullptr;
    uint32_t global_rank_;
    uint32_t refs_ = 0;
    std::mutex names_mutex_;
    std::vector<std::pair<const mcpg_group_t *, std::string>> names_;
};

/* A group and its share of the context. Calls hold a shared_ptr, so that a shutdown in another thread waits for none of
 * them. */
struct Group {
    ~Group();
    Context *context = nullptr;
    mcpg_group_t *handle = nullptr;
    uint32_t capacity = 0;
    std::string name;
    at::Tensor mirror;
};

/* Where a backend keeps its group; the exit hook reaches it through a weak list. */
struct GroupSlot {
    std::mutex mutex;
    std::shared_ptr<Group> group;
    std::shared_ptr<Group> take();
};
void remember(const std::shared_ptr<GroupSlot> &slot); /* for shutdown_everything */
void shutdown_everything();

/* One operation of the library, and the tensors it borrows. Kept alive by its Work, and by the callback if the Work is
 * dropped early. */
class Op : public std::enable_shared_from_this<Op> {
  public:
    struct Copy {
        at::Tensor to, from;
    };
    Op(mcpg_op_kind_t kind, std::string group_name, uint32_t capacity);
    ~Op();
    void submit(const Group &group, mcpg_op_t *op); /* throws Error */
    bool test();                                    /* true: complete, results are final */
    bool wait(uint64_t timeout_us);                 /* false: this call's limit passed */
    /* Runs the hook on the callback thread when complete; at once, on this thread, if it already is. */
    void when_done(std::function<void()> hook);
    void orphan(); /* nobody will wait any more: tensors stay until the library is done with them */

    mcpg_status_t status();
    std::exception_ptr exception(); /* null if OK */
    std::vector<int32_t> hint();
    bool local_success();
    std::string describe() const;
    uint64_t seq() const { return seq_; }

    std::vector<at::Tensor> keep;
    std::vector<Copy> copies;

  private:
    static void on_complete(void *user, mcpg_work_t *work);
    bool enter(); /* false: done */
    void leave();
    void finish();
    std::mutex mutex_;
    mcpg_work_t *work_ = nullptr;
    const mcpg_op_kind_t kind_;
    const std::string group_name_;
    uint64_t seq_ = UINT64_MAX;
    uint32_t users_ = 0;
    bool done_ = false;
    bool callback_ = false;
    mcpg_status_t status_ = MCPG_IN_PROGRESS;
    std::string text_;
    std::vector<int32_t> hint_;
    bool success_ = false;
    std::vector<std::function<void()>> hooks_;
};

class MooncakeWork : public c10d::Work {
  public:
    MooncakeWork(int rank, c10d::OpType type, std::vector<std::shared_ptr<Op>> ops, std::vector<at::Tensor> outputs,
                 int source);
    ~MooncakeWork() override;
    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    std::vector<at::Tensor> result() override;
    void synchronize() override;
    bool wait(std::chrono::milliseconds timeout) override;
    void abort() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
    float getDuration() const override;
    uint64_t getSequencenumber() const override;

    /* Both wait, and never throw for an operation that ended with an error. */
    std::vector<int32_t> failed_ranks();
    bool local_success();
    const std::vector<std::shared_ptr<Op>> &ops() const { return ops_; }
    const std::vector<at::Tensor> &outputs() const { return outputs_; }

  private:
    c10::intrusive_ptr<c10::ivalue::Future> make_future(bool of_result);
    const std::vector<std::shared_ptr<Op>> ops_;
    const std::vector<at::Tensor> outputs_;
    const int source_;
    std::mutex future_mutex_;
    c10::intrusive_ptr<c10::ivalue::Future> future_, future_result_;
};

struct MooncakeOptions : c10d::Backend::Options {
    MooncakeOptions(const std::string &backend, std::chrono::milliseconds timeout)
        : c10d::Backend::Options(backend, timeout) {}
    bool is_extension = false;
    bool auto_deactivate_on_failure = true;
    bool auto_sync_on_failure = true;
    uint32_t max_group_size = 0;
    std::string group_key;   /* empty: none */
    at::Tensor active_ranks; /* undefined: the backend makes one */
};

class MooncakeBackend : public c10d::Backend {
  public:
    /* Blocks until the group is Ready (a founder) or attached and isolated (a joiner). */
    MooncakeBackend(const c10d::DistributedBackendOptions &torch_options,
                    const c10::intrusive_ptr<MooncakeOptions> &options);
    ~MooncakeBackend() override;

    const std::string getBackendName() const override { return "mooncake"; }
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
    bool supportsCoalescing() const override { return false; }
    void startCoalescing() override;
    c10::intrusive_ptr<c10d::Work> endCoalescing() override;
    void setTimeout(std::chrono::milliseconds timeout) override;
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override;
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;

    using Tensors = std::vector<at::Tensor>;
    using Lists = std::vector<Tensors>;
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;
    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) override;
    WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts) override;
    WorkPtr allgather(Lists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_coalesced(Lists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::AllgatherOptions &opts) override;
    WorkPtr gather(Lists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) override;
    WorkPtr scatter(Tensors &outputs, Lists &inputs, const c10d::ScatterOptions &opts) override;
    WorkPtr reduce_scatter(Tensors &outputs, Lists &inputs, const c10d::ReduceScatterOptions &opts) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                 const c10d::ReduceScatterOptions &opts) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                            const c10d::ReduceScatterOptions &opts) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                          std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) override;
    WorkPtr send(Tensors &tensors, int peer, int tag) override;
    WorkPtr recv(Tensors &tensors, int peer, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;
    WorkPtr barrier(const c10d::BarrierOptions &opts) override;

    std::shared_ptr<Group> group() const; /* throws INVALID_STATE after shutdown */
    std::shared_ptr<Group> group_or_null() const;
    const at::Tensor &mirror() const { return options_->active_ranks; }
    uint32_t capacity() const { return options_->max_group_size; }
    int size_now() const;

  private:
    std::shared_ptr<Op> allreduce_one(const at::Tensor &tensor, const c10d::AllreduceOptions &opts);
    std::shared_ptr<Op> allgather_one(const Tensors &outputs, const at::Tensor &input,
                                      std::chrono::milliseconds timeout);
    std::shared_ptr<Op> allgather_single(const at::Tensor &output, const at::Tensor &input,
                                         std::chrono::milliseconds timeout);
    std::shared_ptr<Op> reduce_scatter_single(const at::Tensor &output, const at::Tensor &input,
                                              const c10d::ReduceScatterOptions &opts);
    WorkPtr finish_call(c10d::OpType type, std::vector<std::shared_ptr<Op>> ops, Tensors outputs, int source = -1);
    const c10::intrusive_ptr<MooncakeOptions> options_;
    const std::shared_ptr<GroupSlot> slot_;
    mutable std::mutex state_mutex_;
    mutable int last_size_;
    bool aborted_ = false;
    bool coalescing_ = false;
    std::vector<std::shared_ptr<Op>> coalesced_ops_;
    Tensors coalesced_outputs_;
};

/* The group as torch sees it: size() follows the view; everything else goes to the backend. */
class MooncakeProcessGroup : public c10d::ProcessGroup {
  public:
    MooncakeProcessGroup(const c10::intrusive_ptr<c10d::Store> &store,
                         const c10::intrusive_ptr<MooncakeBackend> &backend);
    int getSize() const override { return backend_->size_now(); }
    const std::string getBackendName() const override { return backend_->getBackendName(); }
    const c10::intrusive_ptr<MooncakeBackend> &backend() const { return backend_; }

  private:
    const c10::intrusive_ptr<MooncakeBackend> backend_;
};

} // namespace mooncake_torch
