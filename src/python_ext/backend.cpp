/* backend.cpp: torch's operations as calls of pg.h: MooncakeBackend and the thin MooncakeProcessGroup.
 *
 * Tensors become segments; strided ones go through contiguous copies that are written back at completion. This file decides nothing
 * about membership or failures, and never touches a Python object.
 */
#include "backend.hpp"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace mooncake_torch {

namespace {

uint64_t microseconds(std::chrono::milliseconds t) { return t.count() > 0 ? static_cast<uint64_t>(t.count()) * 1000U : 0U; }

} // namespace

/* ---- Call: one torch operation on its way into the library ------------------------------------------------------------------- */

class Call {
public:
    Call(const MooncakeBackend &backend, mcpg_op_kind_t kind, std::chrono::milliseconds timeout) : group_(backend.group()) {
        op_.struct_size = sizeof op_;
        op_.kind = kind;
        op_.timeout_us = microseconds(timeout);
        result_ = std::make_shared<Op>(kind, group_->name, group_->capacity);
    }
    mcpg_op_t &op() { return op_; }
    void reduce_with(const c10d::ReduceOp &reduce_op);
    mcpg_seg_t input(const at::Tensor &tensor) { return segment(tensor, false); }
    mcpg_seg_t output(const at::Tensor &tensor) { return segment(tensor, true); }
    void inputs(const std::vector<at::Tensor> &list);
    void outputs(const std::vector<at::Tensor> &list);
    void split_input(const at::Tensor &whole, size_t each);
    void split_output(const at::Tensor &whole, size_t each);
    void input_rows(const at::Tensor &whole, const std::vector<int64_t> &rows) { rows_of(input(whole), whole, rows, &ins_); }
    void output_rows(const at::Tensor &whole, const std::vector<int64_t> &rows) { rows_of(output(whole), whole, rows, &outs_); }
    std::shared_ptr<Op> submit();
    [[noreturn]] void refuse(mcpg_status_t status, const std::string &why) const {
        throw Error(status, std::string(mcpg_op_name(op_.kind)) + " on group '" + group_->name + "': " + why);
    }

private:
    void set_dtype(const at::Tensor &tensor);
    mcpg_seg_t segment(const at::Tensor &tensor, bool writes);
    void split(mcpg_seg_t whole, size_t each, std::vector<mcpg_seg_t> *list) const;
    void rows_of(mcpg_seg_t whole, const at::Tensor &tensor, const std::vector<int64_t> &rows, std::vector<mcpg_seg_t> *list) const;
    void check_outputs() const;
    bool reduces() const {
        return op_.kind == MCPG_OP_ALLREDUCE || op_.kind == MCPG_OP_REDUCE || op_.kind == MCPG_OP_REDUCE_SCATTER;
    }
    bool input_must_be_private() const { return op_.kind == MCPG_OP_REDUCE_SCATTER || op_.kind == MCPG_OP_ALLTOALL; }
    const std::shared_ptr<Group> group_;
    std::shared_ptr<Op> result_;
    mcpg_op_t op_ = {};
    std::vector<mcpg_seg_t> ins_, outs_;
    std::vector<std::pair<const char *, size_t>> written_; /* bytes that this call writes directly */
    bool typed_ = false;
    at::ScalarType type_ = at::kByte;
    size_t unit_ = 1; /* library elements per tensor element */
};

void Call::set_dtype(const at::Tensor &tensor) {
    if (typed_) {
        if (tensor.scalar_type() != type_) {
            refuse(MCPG_INVALID_ARGUMENT, std::string("tensors of one call must have one dtype, got ") + c10::toString(type_) + " and " +
                                              c10::toString(tensor.scalar_type()) + ": convert them with .to()");
        }
        return;
    }
    typed_ = true;
    type_ = tensor.scalar_type();
    static const std::pair<at::ScalarType, mcpg_dtype_t> table[] = {
        {at::kByte, MCPG_U8},    {at::kChar, MCPG_I8},       {at::kShort, MCPG_I16},   {at::kInt, MCPG_I32},       {at::kLong, MCPG_I64},
        {at::kFloat, MCPG_F32},  {at::kDouble, MCPG_F64},    {at::kBool, MCPG_BOOL},   {at::kHalf, MCPG_F16},      {at::kBFloat16, MCPG_BF16},
        {at::kUInt16, MCPG_U16}, {at::kUInt32, MCPG_U32},    {at::kUInt64, MCPG_U64},
    };
    for (const auto &row : table) {
        if (row.first == type_) {
            op_.dtype = row.second;
            return;
        }
    }
    if (reduces()) {
        refuse(MCPG_NOT_SUPPORTED, std::string("dtype ") + c10::toString(type_) +
                                       " cannot be reduced: convert to float32, float64, float16, bfloat16, bool or an integer dtype with .to()");
    }
    op_.dtype = MCPG_BYTES;
    unit_ = tensor.element_size();
}

void Call::reduce_with(const c10d::ReduceOp &reduce_op) {
    switch (reduce_op.op_) {
    case c10d::ReduceOp::SUM: op_.redop = MCPG_SUM; return;
    case c10d::ReduceOp::AVG: op_.redop = MCPG_AVG; return;
    case c10d::ReduceOp::PRODUCT: op_.redop = MCPG_PRODUCT; return;
    case c10d::ReduceOp::MIN: op_.redop = MCPG_MIN; return;
    case c10d::ReduceOp::MAX: op_.redop = MCPG_MAX; return;
    case c10d::ReduceOp::BAND: op_.redop = MCPG_BAND; return;
    case c10d::ReduceOp::BOR: op_.redop = MCPG_BOR; return;
    case c10d::ReduceOp::BXOR: op_.redop = MCPG_BXOR; return;
    case c10d::ReduceOp::PREMUL_SUM: refuse(MCPG_NOT_SUPPORTED, "ReduceOp PREMUL_SUM: multiply the tensor first and use SUM");
    case c10d::ReduceOp::UNUSED: break;
    }
    refuse(MCPG_INVALID_ARGUMENT, "unknown ReduceOp " + std::to_string(static_cast<int>(reduce_op.op_)) + ": use SUM, AVG, PRODUCT, MIN or MAX");
}

mcpg_seg_t Call::segment(const at::Tensor &tensor, bool writes) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
        refuse(MCPG_NOT_SUPPORTED, "only dense tensors can be used: convert sparse or quantized ones with .to_dense() or .dequantize()");
    }
    if (!tensor.device().is_cpu()) {
        refuse(MCPG_NOT_SUPPORTED, "tensor on " + tensor.device().str() + ", but this group serves CPU tensors: move it with .cpu()");
    }
    set_dtype(tensor);
    const at::NoGradGuard no_grad;
    at::Tensor dense = tensor.detach();
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) {
        if (writes) {
            at::assert_no_internal_overlap(tensor);
        }
        dense = tensor.detach().resolve_conj().resolve_neg().contiguous();
        if (writes) {
            result_->copies.push_back({tensor.detach(), dense});
        }
    }
    char *const ptr = static_cast<char *>(dense.data_ptr());
    const size_t bytes = static_cast<size_t>(dense.nbytes());
    if (writes) {
        written_.emplace_back(ptr, bytes);
    } else if (input_must_be_private()) {
        const bool shared = std::any_of(written_.begin(), written_.end(), [&](const auto &w) { return ptr < w.first + w.second && w.first < ptr + bytes; });
        if (shared) {
            dense = dense.clone(); /* peers may read our input after our output was written */
        }
    }
    result_->keep.push_back(dense);
    return {dense.data_ptr(), static_cast<size_t>(dense.numel()) * unit_};
}

void Call::inputs(const std::vector<at::Tensor> &list) {
    for (const at::Tensor &tensor : list) {
        ins_.push_back(input(tensor));
    }
}

void Call::outputs(const std::vector<at::Tensor> &list) {
    for (const at::Tensor &tensor : list) {
        outs_.push_back(output(tensor));
    }
}

void Call::split(mcpg_seg_t whole, size_t each, std::vector<mcpg_seg_t> *list) const {
    const size_t bytes = mcpg_dtype_size(op_.dtype);
    size_t count = mcpg_group_size(group_->handle);
    if (each != 0) {
        if (whole.count % (each * unit_) != 0) {
            refuse(MCPG_INVALID_ARGUMENT, "a tensor of " + std::to_string(whole.count / unit_) + " elements cannot be cut into pieces of " +
                                              std::to_string(each) + ": it needs pieces times size() elements");
        }
        count = whole.count / (each * unit_);
    } else if (whole.count != 0) {
        refuse(MCPG_INVALID_ARGUMENT, "one tensor is empty, the other has " + std::to_string(whole.count / unit_) + " elements: both must be empty");
    }
    for (size_t i = 0; i < count; i += 1) {
        char *const ptr = static_cast<char *>(whole.ptr);
        list->push_back({ptr == nullptr ? nullptr : ptr + i * each * unit_ * bytes, each * unit_});
    }
}

void Call::split_input(const at::Tensor &whole, size_t each) { split(input(whole), each, &ins_); }

void Call::split_output(const at::Tensor &whole, size_t each) { split(output(whole), each, &outs_); }

void Call::rows_of(mcpg_seg_t whole, const at::Tensor &tensor, const std::vector<int64_t> &rows, std::vector<mcpg_seg_t> *list) const {
    const int64_t have = tensor.dim() == 0 ? 1 : tensor.size(0);
    const size_t row = have == 0 ? 0 : whole.count / static_cast<size_t>(have);
    const size_t bytes = mcpg_dtype_size(op_.dtype);
    std::vector<int64_t> split = rows;
    if (split.empty()) {
        const int64_t count = mcpg_group_size(group_->handle);
        if (have % count != 0) {
            refuse(MCPG_INVALID_ARGUMENT, "first dimension " + std::to_string(have) + " cannot be cut evenly for " + std::to_string(count) +
                                              " ranks: pass split sizes");
        }
        split.assign(static_cast<size_t>(count), have / count);
    }
    size_t at = 0;
    for (const int64_t n : split) {
        if (n < 0) {
            refuse(MCPG_INVALID_ARGUMENT, "split size " + std::to_string(n) + " is negative: give one size of 0 or more for each rank");
        }
        char *const ptr = static_cast<char *>(whole.ptr);
        const size_t elements = static_cast<size_t>(n) * row;
        if (elements > whole.count - at) {
            break;
        }
        list->push_back({ptr == nullptr ? nullptr : ptr + at * bytes, elements});
        at += elements;
    }
    if (at != whole.count || list->size() != split.size()) {
        refuse(MCPG_INVALID_ARGUMENT, "split sizes do not add up to the first dimension, " + std::to_string(have) + ": make them match");
    }
}

/* Two outputs in the same memory would hold a mix of two ranks' data. */
void Call::check_outputs() const {
    std::vector<std::pair<const char *, size_t>> sorted;
    std::copy_if(written_.begin(), written_.end(), std::back_inserter(sorted), [](const auto &w) { return w.second != 0; });
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 1; i < sorted.size(); i += 1) {
        if (sorted[i - 1].first + sorted[i - 1].second > sorted[i].first) {
            refuse(MCPG_INVALID_ARGUMENT, "two output tensors share memory: give each rank its own output tensor");
        }
    }
}

std::shared_ptr<Op> Call::submit() {
    if (written_.size() > 1) {
        check_outputs();
    }
    op_.ins = ins_.data();
    op_.in_count = static_cast<uint32_t>(ins_.size());
    op_.outs = outs_.data();
    op_.out_count = static_cast<uint32_t>(outs_.size());
    result_->submit(*group_, &op_);
    return result_;
}

/* ---- MooncakeBackend: life --------------------------------------------------------------------------------------------------- */

namespace {

/* torch wraps the Store in "<group>/" and "<device>/", and a subgroup's in the default group's prefix too. A user's own prefix stays. */
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

MooncakeBackend::MooncakeBackend(const c10d::DistributedBackendOptions &torch_options, const c10::intrusive_ptr<MooncakeOptions> &options)
    : c10d::Backend(torch_options.group_rank, torch_options.group_size), options_(options), slot_(std::make_shared<GroupSlot>()),
      last_size_(torch_options.group_size) {
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
    config.label = options->is_extension ? nullptr : torch_options.group_id.c_str();
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
        throw Error(status, "group '" + group->name + "' was not created: " + (text.empty() ? mcpg_status_text(status) : text));
    }
    group->context->name_group(group->handle, group->name);
    slot_->group = std::move(group);
    remember(slot_);
}

MooncakeBackend::~MooncakeBackend() { MooncakeBackend::shutdown(); }

c10::intrusive_ptr<c10d::Backend::Options> MooncakeBackend::getBackendOptions() { return options_; }

std::shared_ptr<Group> MooncakeBackend::group_or_null() const {
    const std::lock_guard<std::mutex> lock(slot_->mutex);
    return slot_->group;
}

std::shared_ptr<Group> MooncakeBackend::group() const {
    auto group = group_or_null();
    if (!group) {
        throw Error(MCPG_INVALID_STATE, "the group was destroyed or aborted: create a new one with init_process_group or new_group");
    }
    return group;
}

/* A joiner that has not joined reports the size it was declared with: buffers made now fit the group it is about to enter. */
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

MooncakeBackend::WorkPtr MooncakeBackend::finish_call(c10d::OpType type, std::vector<std::shared_ptr<Op>> ops, Tensors outputs, int source) {
    {
        const std::lock_guard<std::mutex> lock(state_mutex_);
        if (coalescing_) {
            coalesced_ops_.insert(coalesced_ops_.end(), ops.begin(), ops.end());
            coalesced_outputs_.insert(coalesced_outputs_.end(), outputs.begin(), outputs.end());
        }
    }
    return c10::make_intrusive<MooncakeWork>(rank_, type, std::move(ops), std::move(outputs), source);
}

/* ---- MooncakeBackend: operations --------------------------------------------------------------------------------------------- */

namespace {

/* torch hands one tensor in a list of one. */
template <typename List> auto &only(List &list, const char *what) {
    if (list.size() != 1) {
        throw Error(MCPG_INVALID_ARGUMENT, std::string(what) + " takes one tensor of this process, got " + std::to_string(list.size()));
    }
    return list.front();
}

void same_length(size_t a, size_t b, const char *what) {
    if (a != b) {
        throw Error(MCPG_INVALID_ARGUMENT, std::string(what) + " needs as many outputs as inputs, got " + std::to_string(a) + " and " + std::to_string(b));
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

MooncakeBackend::WorkPtr MooncakeBackend::allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts) {
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

std::shared_ptr<Op> MooncakeBackend::allgather_one(const Tensors &outputs, const at::Tensor &input, std::chrono::milliseconds timeout) {
    Call call(*this, MCPG_OP_ALLGATHER, timeout);
    call.outputs(outputs);
    call.op().in = call.input(input);
    return call.submit();
}

MooncakeBackend::WorkPtr MooncakeBackend::allgather(Lists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) {
    Tensors &list = only(outputs, "all_gather");
    return finish_call(c10d::OpType::ALLGATHER, {allgather_one(list, only(inputs, "all_gather"), opts.timeout)}, list);
}

MooncakeBackend::WorkPtr MooncakeBackend::allgather_coalesced(Lists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) {
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

std::shared_ptr<Op> MooncakeBackend::allgather_single(const at::Tensor &output, const at::Tensor &input, std::chrono::milliseconds timeout) {
    Call call(*this, MCPG_OP_ALLGATHER, timeout);
    call.split_output(output, static_cast<size_t>(input.numel()));
    call.op().in = call.input(input);
    return call.submit();
}

MooncakeBackend::WorkPtr MooncakeBackend::_allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts) {
    return finish_call(c10d::OpType::_ALLGATHER_BASE, {allgather_single(output, input, opts.timeout)}, {output});
}

MooncakeBackend::WorkPtr MooncakeBackend::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts) {
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

MooncakeBackend::WorkPtr MooncakeBackend::reduce_scatter(Tensors &outputs, Lists &inputs, const c10d::ReduceScatterOptions &opts) {
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

MooncakeBackend::WorkPtr MooncakeBackend::_reduce_scatter_base(at::Tensor &output, at::Tensor &input, const c10d::ReduceScatterOptions &opts) {
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

MooncakeBackend::WorkPtr MooncakeBackend::alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                                                        std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts) {
    Call call(*this, MCPG_OP_ALLTOALL, opts.timeout);
    call.output_rows(output, output_splits);
    call.input_rows(input, input_splits);
    return finish_call(c10d::OpType::ALLTOALL_BASE, {call.submit()}, {output});
}

MooncakeBackend::WorkPtr MooncakeBackend::alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts) {
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
    throw Error(MCPG_NOT_SUPPORTED, "recv without a source rank is not supported: pass src, or receive from each rank in turn");
}

MooncakeBackend::WorkPtr MooncakeBackend::barrier(const c10d::BarrierOptions &opts) {
    Call call(*this, MCPG_OP_BARRIER, opts.timeout);
    return finish_call(c10d::OpType::BARRIER, {call.submit()}, {});
}

MooncakeProcessGroup::MooncakeProcessGroup(const c10::intrusive_ptr<c10d::Store> &store, const c10::intrusive_ptr<MooncakeBackend> &backend)
    : c10d::ProcessGroup(store, backend->getRank(), backend->getSize()), backend_(backend) {
    setBackend(c10::DeviceType::CPU, BackendType::CUSTOM, c10::intrusive_ptr<c10d::Backend>(backend));
    setDefaultBackend(BackendType::CUSTOM);
}

} // namespace mooncake_torch
