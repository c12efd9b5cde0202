/* call.hpp: Call, one torch operation on its way into the library: tensors become the segments of an mcpg_op_t.
 *
 * Refuses what the library could not even be told (sparse tensors, other devices, outputs that share memory); sends
 * nothing itself before submit().
 */
#pragma once

#include "backend.hpp"

namespace mooncake_torch {

inline uint64_t microseconds(std::chrono::milliseconds t) {
    return t.count() > 0 ? static_cast<uint64_t>(t.count()) * 1000U : 0U;
}

class Call {
  public:
    Call(const MooncakeBackend &backend, mcpg_op_kind_t kind, std::chrono::milliseconds timeout)
        : group_(backend.group()), size_(static_cast<size_t>(backend.size_now())) {
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
    void input_rows(const at::Tensor &whole, const std::vector<int64_t> &rows) {
        rows_of(input(whole), whole, rows, &ins_);
    }
    void output_rows(const at::Tensor &whole, const std::vector<int64_t> &rows) {
        rows_of(output(whole), whole, rows, &outs_);
    }
    std::shared_ptr<Op> submit();
    [[noreturn]] void refuse(mcpg_status_t status, const std::string &why) const {
        throw Error(status, std::string(mcpg_op_name(op_.kind)) + " on group '" + group_->name + "': " + why);
    }

  private:
    void set_dtype(const at::Tensor &tensor);
    mcpg_seg_t segment(const at::Tensor &tensor, bool writes);
    void split(mcpg_seg_t whole, size_t each, std::vector<mcpg_seg_t> *list) const;
    void rows_of(mcpg_seg_t whole, const at::Tensor &tensor, const std::vector<int64_t> &rows,
                 std::vector<mcpg_seg_t> *list) const;
    void check_outputs() const;
    bool reduces() const {
        return op_.kind == MCPG_OP_ALLREDUCE || op_.kind == MCPG_OP_REDUCE || op_.kind == MCPG_OP_REDUCE_SCATTER;
    }
    bool input_must_be_private() const { return op_.kind == MCPG_OP_REDUCE_SCATTER || op_.kind == MCPG_OP_ALLTOALL; }
    const std::shared_ptr<Group> group_;
    const size_t size_; /* as the caller sees it */
    std::shared_ptr<Op> result_;
    mcpg_op_t op_ = {};
    std::vector<mcpg_seg_t> ins_, outs_;
    std::vector<std::pair<const char *, size_t>> written_; /* bytes that this call writes directly */
    bool typed_ = false;
    at::ScalarType type_ = at::kByte;
    size_t unit_ = 1; /* library elements per tensor element */
};

} // namespace mooncake_torch
