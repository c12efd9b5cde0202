/* call.cpp: tensors as segments; strided ones go through contiguous copies that are written back at completion.
 *
 * Never touches a Python object and never looks at membership.
 */
#include "call.hpp"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace mooncake_torch {

void Call::set_dtype(const at::Tensor &tensor) {
    if (typed_) {
        if (tensor.scalar_type() != type_) {
            refuse(MCPG_INVALID_ARGUMENT, std::string("tensors of one call must have one dtype, got ") +
                                              c10::toString(type_) + " and " + c10::toString(tensor.scalar_type()) +
                                              ": convert them with .to()");
        }
        return;
    }
    typed_ = true;
    type_ = tensor.scalar_type();
    static const std::pair<at::ScalarType, mcpg_dtype_t> table[] = {
        {at::kByte, MCPG_U8},    {at::kChar, MCPG_I8},       {at::kShort, MCPG_I16},  {at::kInt, MCPG_I32},
        {at::kLong, MCPG_I64},   {at::kFloat, MCPG_F32},     {at::kDouble, MCPG_F64}, {at::kBool, MCPG_BOOL},
        {at::kHalf, MCPG_F16},   {at::kBFloat16, MCPG_BF16}, {at::kUInt16, MCPG_U16}, {at::kUInt32, MCPG_U32},
        {at::kUInt64, MCPG_U64},
    };
    for (const auto &row : table) {
        if (row.first == type_) {
            op_.dtype = row.second;
            return;
        }
    }
    if (reduces()) {
        refuse(MCPG_NOT_SUPPORTED, std::string("dtype ") + c10::toString(type_) +
                                       " cannot be reduced: convert to float32, float64, float16, bfloat16, bool or an "
                                       "integer dtype with .to()");
    }
    op_.dtype = MCPG_BYTES;
    unit_ = tensor.element_size();
}

void Call::reduce_with(const c10d::ReduceOp &reduce_op) {
    switch (reduce_op.op_) {
    case c10d::ReduceOp::SUM:
        op_.redop = MCPG_SUM;
        return;
    case c10d::ReduceOp::AVG:
        op_.redop = MCPG_AVG;
        return;
    case c10d::ReduceOp::PRODUCT:
        op_.redop = MCPG_PRODUCT;
        return;
    case c10d::ReduceOp::MIN:
        op_.redop = MCPG_MIN;
        return;
    case c10d::ReduceOp::MAX:
        op_.redop = MCPG_MAX;
        return;
    case c10d::ReduceOp::BAND:
        op_.redop = MCPG_BAND;
        return;
    case c10d::ReduceOp::BOR:
        op_.redop = MCPG_BOR;
        return;
    case c10d::ReduceOp::BXOR:
        op_.redop = MCPG_BXOR;
        return;
    case c10d::ReduceOp::PREMUL_SUM:
        refuse(MCPG_NOT_SUPPORTED, "ReduceOp PREMUL_SUM: multiply the tensor first and use SUM");
    case c10d::ReduceOp::UNUSED:
        break;
    }
    refuse(MCPG_INVALID_ARGUMENT, "unknown ReduceOp " + std::to_string(static_cast<int>(reduce_op.op_)) +
                                      ": use SUM, AVG, PRODUCT, MIN or MAX");
}

mcpg_seg_t Call::segment(const at::Tensor &tensor, bool writes) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
        refuse(MCPG_NOT_SUPPORTED,
               "only dense tensors can be used: convert sparse or quantized ones with .to_dense() or .dequantize()");
    }
    if (!tensor.device().is_cpu()) {
        refuse(MCPG_NOT_SUPPORTED,
               "tensor on " + tensor.device().str() + ", but this group serves CPU tensors: move it with .cpu()");
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
        const bool shared = std::any_of(written_.begin(), written_.end(), [&](const auto &w) {
            return ptr < w.first + w.second && w.first < ptr + bytes;
        });
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
    size_t count = size_;
    if (each != 0) {
        if (whole.count % (each * unit_) != 0) {
            refuse(MCPG_INVALID_ARGUMENT, "a tensor of " + std::to_string(whole.count / unit_) +
                                              " elements cannot be cut into pieces of " + std::to_string(each) +
                                              ": it needs pieces times size() elements");
        }
        count = whole.count / (each * unit_);
    } else if (whole.count != 0) {
        refuse(MCPG_INVALID_ARGUMENT, "one tensor is empty, the other has " + std::to_string(whole.count / unit_) +
                                          " elements: both must be empty");
    }
    for (size_t i = 0; i < count; i += 1) {
        char *const ptr = static_cast<char *>(whole.ptr);
        list->push_back({ptr == nullptr ? nullptr : ptr + i * each * unit_ * bytes, each * unit_});
    }
}

void Call::split_input(const at::Tensor &whole, size_t each) {
    split(input(whole), each, &ins_);
}

void Call::split_output(const at::Tensor &whole, size_t each) {
    split(output(whole), each, &outs_);
}

void Call::rows_of(mcpg_seg_t whole, const at::Tensor &tensor, const std::vector<int64_t> &rows,
                   std::vector<mcpg_seg_t> *list) const {
    const int64_t have = tensor.dim() == 0 ? 1 : tensor.size(0);
    const size_t row = have == 0 ? 0 : whole.count / static_cast<size_t>(have);
    const size_t bytes = mcpg_dtype_size(op_.dtype);
    std::vector<int64_t> split = rows;
    if (split.empty()) {
        const auto count = static_cast<int64_t>(size_);
        if (count == 0 || have % count != 0) {
            refuse(MCPG_INVALID_ARGUMENT, "first dimension " + std::to_string(have) + " cannot be cut evenly for " +
                                              std::to_string(count) + " ranks: pass split sizes");
        }
        split.assign(static_cast<size_t>(count), have / count);
    }
    size_t at = 0;
    for (const int64_t n : split) {
        if (n < 0) {
            refuse(MCPG_INVALID_ARGUMENT,
                   "split size " + std::to_string(n) + " is negative: give one size of 0 or more for each rank");
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
        refuse(MCPG_INVALID_ARGUMENT,
               "split sizes do not add up to the first dimension, " + std::to_string(have) + ": make them match");
    }
}

/* Two outputs in the same memory would hold a mix of two ranks' data. */
void Call::check_outputs() const {
    std::vector<std::pair<const char *, size_t>> sorted;
    std::copy_if(written_.begin(), written_.end(), std::back_inserter(sorted),
                 [](const auto &w) { return w.second != 0; });
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

} // namespace mooncake_torch
