/* backend.cpp: torch's operations as calls of pg.h: MooncakeBackend and the thin MooncakeProcessGroup.
 *
 * Decides nothing about membership or failures, and never touches a Python object.
 */
#include "call.hpp"

#include <algorithm>

namespace mooncake_torch {

/* ---- MooncakeBackend: life ---- */

namespace {

/* torch wraps the Store in "<group>/" and "<device>/", and a subgroup's in the default group's prefix too. A user's own
 * prefix stays. */
c10::intrusive_ptr<c10d::Store> base_store(const c10d::DistributedBackendOptions &torch_options) {
    c10::intrusive_ptr<c10d::Store> store = torch_options.store;
    for (int i = 0; i < (torch_options.global_ranks_in_group.empty() ? 2 : 3); i += 1) {
        const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store);
        if (!prefixed) {
            break;
        }
        store = prefixed->getUnderlyingStore();
    }
    return store;
}

std::vector<uint32_t> rank_order(const c10d::DistributedBackendOptions &torch_options) {
    std::vector<uint32_t> order;
    for (int slot = 0; slot < torch_options.group_size; slot += 1) {
        const auto &global = torch_options.global_ranks_in_group;
        order.push_back(static_cast<uint32_t>(global.empty() ? slot : global.at(static_cast<size_t>(slot))));
    }
    return order;
}

} // namespace

MooncakeBackend::MooncakeBackend(const c10d::DistributedBackendOptions &torch_options,
                                 const c10::intrusive_ptr<MooncakeOptions> &options)
    : c10d::Backend(torch_options.group_rank, torch_options.group_size), options_(options),
      slot_(std::make_shared<GroupSlot>()), last_size_(torch_options.group_size) {
    const WithoutGil without_gil;
    const std::vector<uint32_t> order = rank_order(torch_options);
    const uint32_t global_rank = order.at(static_cast<size_t>(rank_));
    const uint64_t timeout_us = microseconds(options->timeout);
    constexpr uint64_t attach_limit_us = 300000000;
    Context::Founder founder;
    founder.global_rank = global_rank;
    founder.may_host = !options->is_extension && global_rank == *std::min_element(order.begin(), order.end());
    founder.connect_timeout_us = timeout_us == 0 ? attach_limit_us : std::min(timeout_us, attach_limit_us);
    founder.base_store = base_store(torch_options);

    auto group = std::make_shared<Group>();
    group->context = Context::acquire(founder);
    group->capacity = options->max_group_size;
    group->name = torch_options.group_id;
    group->mirror = options->active_ranks;

    mcpg_group_config_t config = {};
    config.struct_size = sizeof config;
    config.group_key = options->group_key.empty() ? nullptr : options->group_key.c_str();
    config.label = torch_options.group_id.c_str();
    config.rank_order = order.data();
    config.group_size = static_cast<uint32_t>(order.size());
    config.max_group_size = options->max_group_size;
    config.is_extension = options->is_extension;
    config.manual = !options->auto_deactivate_on_failure;
    config.no_auto_sync = !options->auto_sync_on_failure;
    config.active_mirror = group->mirror.data_ptr<int32_t>();
    config.timeout_us = timeout_us;
    const mcpg_status_t status = mcpg_group_create(group->context->handle(), &config, &group->handle);
    if (status != MCPG_OK) {
        const std::string text = group->context->error();
        throw Error(status,
                    "group '" + group->name + "' was not created: " + (text.empty() ? mcpg_status_text(status) : text));
    }
    group->context->name_group(group->handle, group->name);
    slot_->group = std::move(group);
    remember(slot_);
}

MooncakeBackend::~MooncakeBackend() {
    MooncakeBackend::shutdown();
}

c10::intrusive_ptr<c10d::Backend::Options> MooncakeBackend::getBackendOptions() {
    return options_;
}

std::shared_ptr<Group> MooncakeBackend::group_or_null() const {
    const std::lock_guard<std::mutex> lock(slot_->mutex);
    return slot_->group;
}

std::shared_ptr<Group> MooncakeBackend::group() const {
    auto group = group_or_null();
    if (!group) {
        throw Error(MCPG_INVALID_STATE,
                    "the group was destroyed or aborted: create a new one with init_process_group or new_group");
    }
    return group;
}

/* A joiner that has not joined reports the size it was declared with: buffers made now fit the group it is about to
 * enter. */
int MooncakeBackend::size_now() const {
    const auto group = group_or_null();
    const std::lock_guard<std::mutex> lock(state_mutex_);
    if (group) {
        last_size_ = mcpg_group_is_isolated(group->handle) ? size_ : static_cast<int>(mcpg_group_size(group->handle));
    }
    return last_size_;
}

void MooncakeBackend::setTimeout(std::chrono::milliseconds timeout) {
    const auto group = this->group();
    const mcpg_status_t status = mcpg_group_set_timeout(group->handle, microseconds(timeout));
    if (status != MCPG_OK) {
        throw Error(status, "set_timeout: " + group->context->error());
    }
}

uint64_t MooncakeBackend::getSequenceNumberForGroup() {
    const auto group = this->group();
    const auto view = std::make_unique<mcpg_view_t>();
    const mcpg_status_t status = mcpg_group_view(group->handle, view.get());
    if (status != MCPG_OK) {
        throw Error(status, "sequence number: " + group->context->error());
    }
    return view->start_seq;
}

c10d::ErrorType MooncakeBackend::getError() {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    return aborted_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

/* torch calls nothing after abort(), so it also leaves the group. */
void MooncakeBackend::abort() {
    const WithoutGil without_gil;
    if (const auto group = group_or_null()) {
        mcpg_group_abort(group->handle, "the group was aborted by its user");
    }
    {
        const std::lock_guard<std::mutex> lock(state_mutex_);
        aborted_ = true;
    }
    slot_->take().reset();
}

void MooncakeBackend::shutdown() {
    const WithoutGil without_gil;
    slot_->take().reset();
}

void MooncakeBackend::startCoalescing() {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    coalescing_ = true;
}

MooncakeBackend::WorkPtr MooncakeBackend::endCoalescing() {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    coalescing_ = false;
    return c10::make_intrusive<MooncakeWork>(rank_, c10d::OpType::COALESCED, std::exchange(coalesced_ops_, {}),
                                             std::exchange(coalesced_outputs_, {}), -1);
}

MooncakeBackend::WorkPtr MooncakeBackend::finish_call(c10d::OpType type, std::vector<std::shared_ptr<Op>> ops,
                                                      Tensors outputs, int source) {
    {
        const std::lock_guard<std::mutex> lock(state_mutex_);
        if (coalescing_) {
            coalesced_ops_.insert(coalesced_ops_.end(), ops.begin(), ops.end());
            coalesced_outputs_.insert(coalesced_outputs_.end(), outputs.begin(), outputs.end());
        }
    }
    return c10::make_intrusive<MooncakeWork>(rank_, type, std::move(ops), std::move(outputs), source);
}

/* ---- MooncakeBackend: operations ---- */

namespace {

/* torch hands one tensor in a list of one. */
template <typename List> auto &only(List &list, const char *what) {
    if (list.size() != 1) {
        throw Error(MCPG_INVALID_ARGUMENT,
                    std::string(what) + " takes one tensor of this process, got " + std::to_string(list.size()));
    }
    return list.front();
}

void same_length(size_t a, size_t b, const char *what) {
    if (a != b) {
        throw Error(MCPG_INVALID_ARGUMENT, std::string(what) + " needs as many outputs as inputs, got " +
                                               std::to_string(a) + " and " + std::to_string(b));
    }
}

} // namespace

MooncakeBackend::WorkPtr MooncakeBackend::broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts) {
    Call call(*this, MCPG_OP_BROADCAST, opts.timeout);
    call.op().root = static_cast<uint32_t>(opts.rootRank);
    call.op().out = call.output(only(tensors, "broadcast"));
    return finish_call(c10d::OpType::BROADCAST, {call.submit()}, tensors);
}

std::shared_ptr<Op> MooncakeBackend::allreduce_one(const at::Tensor &tensor, const c10d::AllreduceOptions &opts) {
    Call call(*this, MCPG_OP_ALLREDUCE, opts.timeout);
    call.reduce_with(opts.reduceOp);
    call.op().out = call.output(tensor);
    call.op().in = call.op().out;
    return call.submit();
}

MooncakeBackend::WorkPtr MooncakeBackend::allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts) {
    return finish_call(c10d::OpType::ALLREDUCE, {allreduce_one(only(tensors, "all_reduce"), opts)}, tensors);
}

MooncakeBackend::WorkPtr MooncakeBackend::allreduce_coalesced(Tensors &tensors,
                                                              const c10d::AllreduceCoalescedOptions &opts) {
    std::vector<std::shared_ptr<Op>> ops;
    for (const at::Tensor &tensor : tensors) {
        ops.push_back(allreduce_one(tensor, opts));
    }
    return finish_call(c10d::OpType::ALLREDUCE_COALESCED, std::move(ops), tensors);
}

MooncakeBackend::WorkPtr MooncakeBackend::reduce(Tensors &tensors, const c10d::ReduceOptions &opts) {
    Call call(*this, MCPG_OP_REDUCE, opts.timeout);
    call.reduce_with(opts.reduceOp);
    call.op().root = static_cast<uint32_t>(opts.rootRank);
    call.op().out = call.output(only(tensors, "reduce"));
    call.op().in = call.op().out;
    return finish_call(c10d::OpType::REDUCE, {call.submit()}, tensors);
}

std::shared_ptr<Op> MooncakeBackend::allgather_one(const Tensors &outputs, const at::Tensor &input,
                                                   std::chrono::milliseconds timeout) {
    Call call(*this, MCPG_OP_ALLGATHER, timeout);
    call.outputs(outputs);
    call.op().in = call.input(input);
    return call.submit();
}

MooncakeBackend::WorkPtr MooncakeBackend::allgather(Lists &outputs, Tensors &inputs,
                                                    const c10d::AllgatherOptions &opts) {
    Tensors &list = only(outputs, "all_gather");
    return finish_call(c10d::OpType::ALLGATHER, {allgather_one(list, only(inputs, "all_gather"), opts.timeout)}, list);
}

MooncakeBackend::WorkPtr MooncakeBackend::allgather_coalesced(Lists &outputs, Tensors &inputs,
                                                              const c10d::AllgatherOptions &opts) {
    std::vector<std::shared_ptr<Op>> ops;
    Tensors all;
    for (size_t i = 0; i < inputs.size(); i += 1) {
        Tensors by_slot;
        for (const Tensors &slot : outputs) {
            same_length(slot.size(), inputs.size(), "all_gather_coalesced");
            by_slot.push_back(slot[i]);
        }
        ops.push_back(allgather_one(by_slot, inputs[i], opts.timeout));
        all.insert(all.end(), by_slot.begin(), by_slot.end());
    }
    return finish_call(c10d::OpType::ALLGATHER_COALESCED, std::move(ops), std::move(all));
}

std::shared_ptr<Op> MooncakeBackend::allgather_single(const at::Tensor &output, const at::Tensor &input,
                                                      std::chrono::milliseconds timeout) {
    Call call(*this, MCPG_OP_ALLGATHER, timeout);
    call.split_output(output, static_cast<size_t>(input.numel()));
    call.op().in = call.input(input);
    return call.submit();
}

MooncakeBackend::WorkPtr MooncakeBackend::_allgather_base(at::Tensor &output, at::Tensor &input,
                                                          const c10d::AllgatherOptions &opts) {
    return finish_call(c10d::OpType::_ALLGATHER_BASE, {allgather_single(output, input, opts.timeout)}, {output});
}

MooncakeBackend::WorkPtr MooncakeBackend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                                          const c10d::AllgatherOptions &opts) {
    same_length(outputs.size(), inputs.size(), "all_gather_into_tensor_coalesced");
    std::vector<std::shared_ptr<Op>> ops;
    for (size_t i = 0; i < outputs.size(); i += 1) {
        ops.push_back(allgather_single(outputs[i], inputs[i], opts.timeout));
    }
    return finish_call(c10d::OpType::COALESCED, std::move(ops), outputs);
}

MooncakeBackend::WorkPtr MooncakeBackend::gather(Lists &outputs, Tensors &inputs, const c10d::GatherOptions &opts) {
    Call call(*this, MCPG_OP_GATHER, opts.timeout);
    call.op().root = static_cast<uint32_t>(opts.rootRank);
    const Tensors list = outputs.empty() ? Tensors() : only(outputs, "gather");
    call.outputs(list);
    call.op().in = call.input(only(inputs, "gather"));
    return finish_call(c10d::OpType::GATHER, {call.submit()}, list);
}

MooncakeBackend::WorkPtr MooncakeBackend::scatter(Tensors &outputs, Lists &inputs, const c10d::ScatterOptions &opts) {
    Call call(*this, MCPG_OP_SCATTER, opts.timeout);
    call.op().root = static_cast<uint32_t>(opts.rootRank);
    call.op().out = call.output(only(outputs, "scatter"));
    if (!inputs.empty()) {
        call.inputs(only(inputs, "scatter"));
    }
    return finish_call(c10d::OpType::SCATTER, {call.submit()}, outputs);
}

MooncakeBackend::WorkPtr MooncakeBackend::reduce_scatter(Tensors &outputs, Lists &inputs,
                                                         const c10d::ReduceScatterOptions &opts) {
    Call call(*this, MCPG_OP_REDUCE_SCATTER, opts.timeout);
    call.reduce_with(opts.reduceOp);
    call.op().out = call.output(only(outputs, "reduce_scatter"));
    call.inputs(only(inputs, "reduce_scatter"));
    return finish_call(c10d::OpType::REDUCE_SCATTER, {call.submit()}, outputs);
}

std::shared_ptr<Op> MooncakeBackend::reduce_scatter_single(const at::Tensor &output, const at::Tensor &input,
                                                           const c10d::ReduceScatterOptions &opts) {
    Call call(*this, MCPG_OP_REDUCE_SCATTER, opts.timeout);
    call.reduce_with(opts.reduceOp);
    call.op().out = call.output(output);
    call.split_input(input, static_cast<size_t>(output.numel()));
    return call.submit();
}

MooncakeBackend::WorkPtr MooncakeBackend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                                               const c10d::ReduceScatterOptions &opts) {
    return finish_call(c10d::OpType::_REDUCE_SCATTER_BASE, {reduce_scatter_single(output, input, opts)}, {output});
}

MooncakeBackend::WorkPtr MooncakeBackend::reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                                          const c10d::ReduceScatterOptions &opts) {
    same_length(outputs.size(), inputs.size(), "reduce_scatter_tensor_coalesced");
    std::vector<std::shared_ptr<Op>> ops;
    for (size_t i = 0; i < outputs.size(); i += 1) {
        ops.push_back(reduce_scatter_single(outputs[i], inputs[i], opts));
    }
    return finish_call(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, std::move(ops), outputs);
}

MooncakeBackend::WorkPtr MooncakeBackend::alltoall_base(at::Tensor &output, at::Tensor &input,
                                                        std::vector<int64_t> &output_splits,
                                                        std::vector<int64_t> &input_splits,
                                                        const c10d::AllToAllOptions &opts) {
    Call call(*this, MCPG_OP_ALLTOALL, opts.timeout);
    call.output_rows(output, output_splits);
    call.input_rows(input, input_splits);
    return finish_call(c10d::OpType::ALLTOALL_BASE, {call.submit()}, {output});
}

MooncakeBackend::WorkPtr MooncakeBackend::alltoall(Tensors &outputs, Tensors &inputs,
                                                   const c10d::AllToAllOptions &opts) {
    Call call(*this, MCPG_OP_ALLTOALL, opts.timeout);
    call.outputs(outputs);
    call.inputs(inputs);
    return finish_call(c10d::OpType::ALLTOALL, {call.submit()}, outputs);
}

MooncakeBackend::WorkPtr MooncakeBackend::send(Tensors &tensors, int peer, int tag) {
    Call call(*this, MCPG_OP_SEND, c10d::kUnsetTimeout);
    call.op().in = call.input(only(tensors, "send"));
    call.op().peer = static_cast<uint32_t>(peer);
    call.op().tag = static_cast<uint64_t>(static_cast<int64_t>(tag));
    return finish_call(c10d::OpType::SEND, {call.submit()}, {});
}

MooncakeBackend::WorkPtr MooncakeBackend::recv(Tensors &tensors, int peer, int tag) {
    Call call(*this, MCPG_OP_RECV, c10d::kUnsetTimeout);
    call.op().out = call.output(only(tensors, "recv"));
    call.op().peer = static_cast<uint32_t>(peer);
    call.op().tag = static_cast<uint64_t>(static_cast<int64_t>(tag));
    return finish_call(c10d::OpType::RECV, {call.submit()}, tensors, peer);
}

MooncakeBackend::WorkPtr MooncakeBackend::recvAnysource(Tensors &, int) {
    throw Error(MCPG_NOT_SUPPORTED,
                "recv without a source rank is not supported: pass src, or receive from each rank in turn");
}

MooncakeBackend::WorkPtr MooncakeBackend::barrier(const c10d::BarrierOptions &opts) {
    Call call(*this, MCPG_OP_BARRIER, opts.timeout);
    return finish_call(c10d::OpType::BARRIER, {call.submit()}, {});
}

MooncakeProcessGroup::MooncakeProcessGroup(const c10::intrusive_ptr<c10d::Store> &store,
                                           const c10::intrusive_ptr<MooncakeBackend> &backend)
    : c10d::ProcessGroup(store, backend->getRank(), backend->getSize()), backend_(backend) {
    setBackend(c10::DeviceType::CPU, BackendType::CUSTOM, c10::intrusive_ptr<c10d::Backend>(backend));
    setDefaultBackend(BackendType::CUSTOM);
}

} // namespace mooncake_torch
