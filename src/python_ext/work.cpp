/* work.cpp: Op, one operation of the library with the tensors it borrows, and MooncakeWork, what torch hands to its
 * caller.
 *
 * A failed rank is no error here: an operation with failed ranks completes like any other. Destructors never wait: an
 * operation that is dropped early keeps its tensors until the library is done with them.
 */
#include "backend.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>

namespace mooncake_torch {

/* ---- Op ---- */

Op::Op(mcpg_op_kind_t kind, std::string group_name, uint32_t capacity)
    : kind_(kind), group_name_(std::move(group_name)), hint_(capacity, 0) {}

Op::~Op() {
    mcpg_work_release(work_);
}

std::string Op::describe() const {
    std::string text = mcpg_op_name(kind_);
    if (seq_ != UINT64_MAX) {
        text += " number " + std::to_string(seq_);
    }
    return text + " of group '" + group_name_ + "'";
}

void Op::submit(const Group &group, mcpg_op_t *op) {
    const mcpg_status_t status = mcpg_group_submit(group.handle, op, &work_);
    if (status != MCPG_OK) {
        std::string text = group.context->error();
        throw Error(status, describe() + ": " + (text.empty() ? mcpg_status_text(status) : text));
    }
    seq_ = mcpg_work_seq(work_);
}

bool Op::enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_ || work_ == nullptr) {
        return false;
    }
    users_ += 1;
    return true;
}

/* The handle goes when the last thread inside the library is out, so that no handle outlives its context for want of a
 * Python reference. */
void Op::leave() {
    mcpg_work_t *release = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        users_ -= 1;
        if (done_ && users_ == 0) {
            release = work_;
            work_ = nullptr;
        }
    }
    mcpg_work_release(release);
}

/* The library says it is complete: take the results, write strided outputs back. Tensors die outside the lock, where
 * the GIL may be taken. */
void Op::finish() {
    std::vector<at::Tensor> dead;
    std::vector<Copy> dead_copies;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_) {
        return;
    }
    status_ = mcpg_work_test(work_);
    text_ = mcpg_work_error(work_);
    if (mcpg_work_failed_ranks(work_, hint_.data(), static_cast<uint32_t>(hint_.size()), &success_) != MCPG_OK) {
        success_ = false;
    }
    if (status_ != MCPG_OK) {
        success_ = false;
    }
    try {
        const at::NoGradGuard no_grad;
        for (const Copy &copy : copies) {
            if (status_ == MCPG_OK) {
                copy.to.copy_(copy.from);
            }
        }
    } catch (const std::exception &e) {
        status_ = MCPG_INTERNAL;
        text_ = std::string("writing a strided output back failed: ") + e.what();
        success_ = false;
    }
    dead.swap(keep);
    dead_copies.swap(copies);
    done_ = true;
}

bool Op::test() {
    if (!enter()) {
        return true;
    }
    const bool complete = mcpg_work_test(work_) != MCPG_IN_PROGRESS;
    if (complete) {
        finish();
    }
    leave();
    return complete;
}

bool Op::wait(uint64_t timeout_us) {
    if (!enter()) {
        return true;
    }
    const mcpg_status_t status = mcpg_work_wait(work_, timeout_us);
    const bool complete = status == MCPG_OK || mcpg_work_test(work_) != MCPG_IN_PROGRESS;
    if (complete) {
        finish();
    }
    leave();
    return complete;
}

void Op::on_complete(void *user, mcpg_work_t *) {
    const std::unique_ptr<std::shared_ptr<Op>> holder(static_cast<std::shared_ptr<Op> *>(user));
    Op &op = **holder;
    op.finish();
    std::vector<std::function<void()>> hooks;
    {
        const std::lock_guard<std::mutex> lock(op.mutex_);
        hooks.swap(op.hooks_);
    }
    op.leave();
    for (const auto &hook : hooks) {
        hook();
    }
}

void Op::when_done(std::function<void()> hook) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!done_) {
            if (!callback_) {
                auto holder = std::make_unique<std::shared_ptr<Op>>(shared_from_this());
                const mcpg_status_t status = mcpg_work_on_complete(work_, on_complete, holder.get());
                if (status != MCPG_OK) {
                    throw Error(status, describe() + ": no completion callback: " + mcpg_status_text(status));
                }
                (void)holder.release(); /* owned by the callback */
                callback_ = true;
                users_ += 1;
            }
            hooks_.push_back(std::move(hook));
            return;
        }
    }
    hook();
}

void Op::orphan() {
    if (test()) {
        return;
    }
    try {
        when_done([] {});
    } catch (const std::exception &) {
        new std::shared_ptr<Op>(shared_from_this()); /* the library may still write: better a leak than a torn heap */
    }
}

mcpg_status_t Op::status() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_;
}

std::exception_ptr Op::exception() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!done_ || status_ == MCPG_OK) {
        return nullptr;
    }
    return std::make_exception_ptr(
        Error(status_, describe() + ": " + (text_.empty() ? mcpg_status_text(status_) : text_)));
}

std::vector<int32_t> Op::hint() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return hint_;
}

bool Op::local_success() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ && success_;
}

/* ---- MooncakeWork ---- */

MooncakeWork::MooncakeWork(int rank, c10d::OpType type, std::vector<std::shared_ptr<Op>> ops,
                           std::vector<at::Tensor> outputs, int source)
    : c10d::Work(rank, type), ops_(std::move(ops)), outputs_(std::move(outputs)), source_(source) {}

MooncakeWork::~MooncakeWork() {
    for (const auto &op : ops_) {
        op->orphan();
    }
}

bool MooncakeWork::isCompleted() {
    return std::all_of(ops_.begin(), ops_.end(), [](const auto &op) { return op->test(); });
}

bool MooncakeWork::isSuccess() const {
    return std::all_of(ops_.begin(), ops_.end(), [](const auto &op) { return op->test() && op->status() == MCPG_OK; });
}

std::exception_ptr MooncakeWork::exception() const {
    for (const auto &op : ops_) {
        if (auto error = op->exception()) {
            return error;
        }
    }
    return nullptr;
}

int MooncakeWork::sourceRank() const {
    return source_;
}

std::vector<at::Tensor> MooncakeWork::result() {
    return outputs_;
}

void MooncakeWork::synchronize() {
    wait(kNoTimeout);
}

bool MooncakeWork::wait(std::chrono::milliseconds timeout) {
    using Clock = std::chrono::steady_clock;
    const bool limited =
        timeout > kNoTimeout; /* kNoTimeout: the operation's own hard limit, from the group's timeout, ends it */
    const auto deadline = Clock::now() + (limited ? timeout : kNoTimeout);
    for (const auto &op : ops_) {
        uint64_t left_us = UINT64_MAX;
        if (limited) {
            const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
            left_us = left.count() > 0 ? static_cast<uint64_t>(left.count()) : 0U;
        }
        if (!op->wait(left_us)) {
            throw Error(MCPG_TIMED_OUT, op->describe() + " was not complete after the " +
                                            std::to_string(timeout.count()) +
                                            " ms given to wait(); it goes on, wait again or abort the group");
        }
    }
    if (auto error = exception()) {
        std::rethrow_exception(error);
    }
    return true;
}

void MooncakeWork::abort() {
    throw Error(MCPG_NOT_SUPPORTED, "a single operation cannot be aborted: abort its group (ProcessGroup.abort())");
}

c10::intrusive_ptr<c10::ivalue::Future> MooncakeWork::make_future(bool of_result) {
    auto future = of_result ? c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get())
                            : c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    auto left = std::make_shared<std::atomic<size_t>>(std::max<size_t>(ops_.size(), 1U));
    auto complete = [future, left, of_result, ops = ops_, outputs = outputs_] {
        if (left->fetch_sub(1) != 1) {
            return;
        }
        std::exception_ptr error;
        for (const auto &op : ops) {
            error = error ? error : op->exception();
        }
        if (of_result) {
            const auto value = error ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
            future->markCompleted(c10::IValue(static_cast<int64_t>(static_cast<uint8_t>(value))));
        } else if (error) {
            future->setError(error);
        } else {
            future->markCompleted(c10::IValue(outputs));
        }
    };
    if (ops_.empty()) {
        complete();
    }
    for (const auto &op : ops_) {
        op->when_done(complete);
    }
    return future;
}

c10::intrusive_ptr<c10::ivalue::Future> MooncakeWork::getFuture() {
    const std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_) {
        future_ = make_future(false);
    }
    return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> MooncakeWork::getFutureResult() {
    const std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_result_) {
        future_result_ = make_future(true);
    }
    return future_result_;
}

float MooncakeWork::getDuration() const {
    throw Error(MCPG_NOT_SUPPORTED, "operations are not timed: time wait() in the caller");
}

uint64_t MooncakeWork::getSequencenumber() const {
    return ops_.empty() ? 0U : ops_.front()->seq();
}

std::vector<int32_t> MooncakeWork::failed_ranks() {
    std::vector<int32_t> all;
    for (const auto &op : ops_) {
        op->wait(UINT64_MAX);
        const std::vector<int32_t> one = op->hint();
        all.resize(std::max(all.size(), one.size()), 0);
        for (size_t i = 0; i < one.size(); i += 1) {
            all[i] |= one[i];
        }
    }
    return all;
}

bool MooncakeWork::local_success() {
    bool good = true;
    for (const auto &op : ops_) {
        op->wait(UINT64_MAX);
        good = op->local_success() && good;
    }
    return good;
}

} // namespace mooncake_torch
