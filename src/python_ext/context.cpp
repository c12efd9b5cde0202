/* context.cpp: what lives below the backend: errors, the Store as key-value callbacks, events, the one process context,
 * groups.
 *
 * Everything that can block runs without the GIL. The process-wide objects are never destroyed, because torch destroys
 * backends after the interpreter is gone.
 */
#include <torch/csrc/python_headers.h>

#include "backend.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace mooncake_torch {

/* ---- Errors, the GIL, settings ---- */

Error::Error(mcpg_status_t code, const std::string &text)
    : c10::DistBackendError(c10::SourceLocation{"mooncake", "mooncake", 0}, text), status(code) {}

WithoutGil::WithoutGil() : saved_(nullptr) {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
        saved_ = PyEval_SaveThread();
    }
}

WithoutGil::~WithoutGil() {
    if (saved_ != nullptr) {
        PyEval_RestoreThread(static_cast<PyThreadState *>(saved_));
    }
}

Settings &settings() {
    static auto *const all = new Settings;
    return *all;
}

/* ---- The Store ---- */

namespace {

struct Globals {
    std::mutex context_mutex; /* a leaf: never held while a context is made or ended, because callbacks take it */
    std::condition_variable context_free;
    bool context_busy = false; /* being made or ended: there is one at a time */
    Context *context = nullptr;
    std::mutex lists_mutex;
    std::vector<std::weak_ptr<EventQueue>> queues;
    std::vector<std::weak_ptr<GroupSlot>> slots;
};

Globals &globals() {
    static auto *const all = new Globals;
    return *all;
}

std::vector<uint8_t> bytes_of(const void *data, size_t len) {
    const auto *const first = static_cast<const uint8_t *>(data);
    return len == 0 ? std::vector<uint8_t>() : std::vector<uint8_t>(first, first + len);
}

void copy_out(const std::vector<uint8_t> &from, void *value, size_t cap, size_t *len_out) {
    if (!from.empty()) {
        std::memcpy(value, from.data(), std::min(cap, from.size()));
    }
    *len_out = from.size();
}

constexpr std::chrono::milliseconds kLongestPause(32);

/* Store calls throw on a lost connection: the library wants a status. */
template <typename F> mcpg_status_t guarded(F &&call) {
    try {
        return call();
    } catch (const std::exception &) {
        return MCPG_UNAVAILABLE;
    }
}

} // namespace

StoreKv::StoreKv(c10::intrusive_ptr<c10d::Store> base) : base_(std::move(base)) {}

/* Made when it is first needed: connecting may take seconds where the resolver does not answer. */
c10d::Store &StoreKv::own() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!own_) {
        own_ = base_->clone();
    }
    return *own_;
}

mcpg_kv_t StoreKv::callbacks() {
    mcpg_kv_t kv = {};
    kv.user = this;
    kv.get = get;
    kv.set = set;
    kv.compare_set = compare_set;
    kv.add = add;
    return kv;
}

mcpg_status_t StoreKv::get(void *user, const char *key, void *value, size_t cap, size_t *len_out, uint32_t timeout_ms) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
    try {
        c10d::Store &store = static_cast<StoreKv *>(user)->own();
        /* Asks again and again: a blocking wait holds the connection, and torch warns when one runs out of time. */
        for (auto pause = std::chrono::milliseconds(1); !store.check({key});
             pause = std::min(pause * 2, kLongestPause)) {
            if (Clock::now() + pause > deadline) {
                return MCPG_TIMED_OUT;
            }
            std::this_thread::sleep_for(pause);
        }
    } catch (const std::exception &) {
        return MCPG_UNAVAILABLE;
    }
    return guarded([&] {
        copy_out(static_cast<StoreKv *>(user)->own().get(key), value, cap, len_out);
        return MCPG_OK;
    });
}

mcpg_status_t StoreKv::set(void *user, const char *key, const void *value, size_t len) {
    return guarded([&] {
        static_cast<StoreKv *>(user)->own().set(key, bytes_of(value, len));
        return MCPG_OK;
    });
}

mcpg_status_t StoreKv::compare_set(void *user, const char *key, const void *expected, size_t expected_len,
                                   const void *desired, size_t desired_len, void *value, size_t cap, size_t *len_out) {
    return guarded([&] {
        c10d::Store &store = static_cast<StoreKv *>(user)->own();
        copy_out(store.compareSet(key, bytes_of(expected, expected_len), bytes_of(desired, desired_len)), value, cap,
                 len_out);
        return MCPG_OK;
    });
}

mcpg_status_t StoreKv::add(void *user, const char *key, int64_t delta, int64_t *value_out) {
    return guarded([&] {
        *value_out = static_cast<StoreKv *>(user)->own().add(key, delta);
        return MCPG_OK;
    });
}

/* ---- Events ---- */

void EventQueue::push(const Event &event) {
    constexpr size_t cap = 4096;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (events_.size() == cap) {
        events_.pop_front();
    }
    events_.push_back(event);
    changed_.notify_one();
}

void EventQueue::close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    changed_.notify_all();
}

bool EventQueue::closed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_ && events_.empty();
}

bool EventQueue::pop(double timeout_s, Event *out) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [this] { return closed_ || !events_.empty(); };
    if (timeout_s < 0) {
        changed_.wait(lock, ready);
    } else {
        changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), ready);
    }
    if (events_.empty()) {
        return false;
    }
    *out = events_.front();
    events_.pop_front();
    return true;
}

std::shared_ptr<EventQueue> subscribe() {
    auto queue = std::make_shared<EventQueue>();
    auto &all = globals();
    const std::lock_guard<std::mutex> context_lock(all.context_mutex);
    if (all.context == nullptr) {
        queue->close();
        return queue;
    }
    const std::lock_guard<std::mutex> lock(all.lists_mutex);
    std::erase_if(all.queues, [](const auto &q) { return q.expired(); });
    all.queues.push_back(queue);
    return queue;
}

/* ---- Context and groups ---- */

Context::Context(const Founder &founder) : kv_(founder.base_store), global_rank_(founder.global_rank) {
    mcpg_config_t config = {};
    config.struct_size = sizeof config;
    config.global_rank = founder.global_rank;
    const mcpg_kv_t kv = kv_.callbacks();
    config.kv = &kv;
    config.may_host_coordinator = founder.may_host;
    config.may_take_over = true;
    config.connect_timeout_us = founder.connect_timeout_us;
    std::string host_ip;
    {
        const std::lock_guard<std::mutex> lock(settings().mutex);
        host_ip = settings().host_ip;
        config.timers = settings().timers;
    }
    config.host_ip = host_ip.empty() ? nullptr : host_ip.c_str();
    char text[512] = "";
    const mcpg_status_t status = mcpg_context_create(&config, &handle_, text, sizeof text);
    if (status != MCPG_OK) {
        throw Error(status, text[0] != '\0' ? std::string(text) : std::string(mcpg_status_text(status)));
    }
    if (mcpg_context_on_event(handle_, on_event, this) != MCPG_OK) {
        mcpg_context_destroy(handle_);
        throw Error(MCPG_INTERNAL, "the event callback was refused");
    }
}

Context::~Context() {
    const mcpg_status_t removed = mcpg_context_on_event(handle_, nullptr, nullptr);
    (void)removed; /* in a forked child it is refused, and no callback runs there */
    mcpg_context_destroy(handle_);
    auto &all = globals();
    const std::lock_guard<std::mutex> lock(all.lists_mutex);
    for (const auto &weak : all.queues) {
        if (const auto queue = weak.lock()) {
            queue->close();
        }
    }
    all.queues.clear();
}

Context *Context::acquire(const Founder &founder) {
    auto &all = globals();
    std::unique_lock<std::mutex> lock(all.context_mutex);
    all.context_free.wait(lock, [&all] { return !all.context_busy; });
    if (all.context == nullptr) {
        all.context_busy = true;
        lock.unlock();
        Context *made = nullptr;
        std::exception_ptr error;
        try {
            made = new Context(founder);
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        all.context_busy = false;
        all.context_free.notify_all();
        if (error) {
            std::rethrow_exception(error);
        }
        all.context = made;
    } else if (all.context->global_rank_ != founder.global_rank) {
        throw Error(MCPG_INVALID_STATE, "this process is global rank " + std::to_string(all.context->global_rank_) +
                                            " and cannot also be rank " + std::to_string(founder.global_rank) +
                                            ": destroy its groups first");
    }
    all.context->refs_ += 1;
    return all.context;
}

Context *Context::try_acquire() {
    auto &all = globals();
    const std::lock_guard<std::mutex> lock(all.context_mutex);
    if (all.context != nullptr) {
        all.context->refs_ += 1;
    }
    return all.context;
}

void Context::release(Context *context) {
    if (context == nullptr) {
        return;
    }
    auto &all = globals();
    std::unique_lock<std::mutex> lock(all.context_mutex);
    context->refs_ -= 1;
    if (context->refs_ != 0) {
        return;
    }
    all.context = nullptr;
    all.context_busy = true;
    lock.unlock();
    delete context;
    lock.lock();
    all.context_busy = false;
    all.context_free.notify_all();
}

std::string Context::error() const {
    const char *const text = mcpg_context_error(handle_);
    return text == nullptr ? std::string() : std::string(text);
}

void Context::name_group(const mcpg_group_t *group, const std::string &name) {
    const std::lock_guard<std::mutex> lock(names_mutex_);
    names_.emplace_back(group, name);
}

void Context::forget_group(const mcpg_group_t *group) {
    const std::lock_guard<std::mutex> lock(names_mutex_);
    std::erase_if(names_, [group](const auto &entry) { return entry.first == group; });
}

void Context::on_event(void *user, const mcpg_event_t *event) {
    auto *const context = static_cast<Context *>(user);
    Event copy = {event->kind, "", event->epoch, event->global_rank, event->state};
    if (event->kind == MCPG_EVENT_VIEW) {
        const std::lock_guard<std::mutex> lock(context->names_mutex_);
        for (const auto &entry : context->names_) {
            copy.group = entry.first == event->group ? entry.second : copy.group;
        }
    }
    auto &all = globals();
    const std::lock_guard<std::mutex> lock(all.lists_mutex);
    for (const auto &weak : all.queues) {
        if (const auto queue = weak.lock()) {
            queue->push(copy);
        }
    }
}

Group::~Group() {
    const WithoutGil without_gil;
    if (handle != nullptr) {
        context->forget_group(handle);
        mcpg_group_destroy(handle);
    }
    Context::release(context);
}

std::shared_ptr<Group> GroupSlot::take() {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(group, nullptr);
}

void remember(const std::shared_ptr<GroupSlot> &slot) {
    auto &all = globals();
    const std::lock_guard<std::mutex> lock(all.lists_mutex);
    std::erase_if(all.slots, [](const auto &s) { return s.expired(); });
    all.slots.push_back(slot);
}

void shutdown_everything() {
    const WithoutGil without_gil;
    std::vector<std::weak_ptr<GroupSlot>> slots;
    {
        const std::lock_guard<std::mutex> lock(globals().lists_mutex);
        slots.swap(globals().slots);
    }
    for (const auto &weak : slots) {
        if (const auto slot = weak.lock()) {
            slot->take().reset();
        }
    }
}

} // namespace mooncake_torch
