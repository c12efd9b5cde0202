/* module.cpp: the Python module mooncake._pg._C: bindings of the classes and of the membership calls of pg.h.
 *
 * Converts arguments and results, nothing else; mooncake/pg.py turns the plain tuples into its types. Calls that may
 * wait release the GIL.
 */
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/headeronly/version.h>

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "backend.hpp"

namespace mooncake_torch {
namespace {

using NoGil = py::gil_scoped_release;
using GroupArg = c10::intrusive_ptr<c10d::ProcessGroup>;
using WorkArg = c10::intrusive_ptr<c10d::Work>;

PyObject *error_class = nullptr; /* kept for the life of the process */

[[noreturn]] void set_error_and_throw(mcpg_status_t status, const std::string &text) {
    const py::object error = py::reinterpret_borrow<py::object>(error_class)(text);
    error.attr("code") = mcpg_status_name(status);
    error.attr("status") = static_cast<int>(status);
    PyErr_SetObject(error_class, error.ptr());
    throw py::error_already_set();
}

void translate(std::exception_ptr pointer) {
    try {
        if (pointer) {
            std::rethrow_exception(pointer);
        }
    } catch (const Error &e) {
        try {
            set_error_and_throw(e.status, e.what_without_backtrace());
        } catch (py::error_already_set &set) {
            set.restore();
        }
    }
}

/* ---- Groups ---- */

c10::intrusive_ptr<MooncakeBackend> backend_of(const GroupArg &group) {
    if (const auto ours = c10::dynamic_intrusive_pointer_cast<MooncakeProcessGroup>(group)) {
        return ours->backend();
    }
    if (group && group->hasBackendForDeviceType(c10::DeviceType::CPU)) {
        if (const auto backend =
                c10::dynamic_intrusive_pointer_cast<MooncakeBackend>(group->getBackend(c10::DeviceType::CPU))) {
            return backend;
        }
    }
    throw Error(MCPG_INVALID_ARGUMENT, "this is no mooncake group: create it with backend=\"mooncake-cpu\"");
}

void check(mcpg_status_t status, const Group &group, const char *what) {
    if (status != MCPG_OK) {
        const std::string text = group.context->error();
        throw Error(status, std::string(what) + " on group '" + group.name +
                                "': " + (text.empty() ? mcpg_status_text(status) : text));
    }
}

std::vector<uint32_t> slots_of(const std::vector<int64_t> &ranks, uint32_t capacity) {
    std::vector<uint32_t> slots;
    for (const int64_t rank : ranks) {
        if (rank < 0 || rank >= static_cast<int64_t>(capacity)) {
            throw Error(MCPG_INVALID_ARGUMENT, "rank " + std::to_string(rank) +
                                                   " is not in this group: give in-group ranks from 0 to " +
                                                   std::to_string(capacity - 1));
        }
        slots.push_back(static_cast<uint32_t>(rank));
    }
    return slots;
}

GroupArg create(const c10d::DistributedBackendOptions &torch_options,
                const c10::intrusive_ptr<MooncakeOptions> &options) {
    const auto backend = c10::make_intrusive<MooncakeBackend>(torch_options, options);
    return c10::make_intrusive<MooncakeProcessGroup>(torch_options.store, backend);
}

std::vector<bool> peer_state(const GroupArg &group, const std::vector<int64_t> &ranks) {
    const auto backend = backend_of(group);
    const auto held = backend->group();
    const std::vector<uint32_t> slots = slots_of(ranks, held->capacity);
    std::vector<uint8_t> ok(slots.size(), 0);
    check(mcpg_group_peer_state(held->handle, slots.data(), static_cast<uint32_t>(slots.size()), ok.data()), *held,
          "get_peer_state");
    return {ok.begin(), ok.end()};
}

/* (answered by the coordinator, result, reason name, new epoch, dropped, text) */
py::tuple update_ranks(const GroupArg &group, const std::vector<int64_t> &activate,
                       const std::vector<int64_t> &deactivate, std::optional<uint64_t> expected_epoch,
                       uint64_t wait_us) {
    const auto held = backend_of(group)->group();
    const std::vector<uint32_t> add = slots_of(activate, held->capacity);
    const std::vector<uint32_t> remove = slots_of(deactivate, held->capacity);
    const auto reply = std::make_unique<mcpg_proposal_reply_t>();
    mcpg_status_t status = MCPG_OK;
    std::string text;
    {
        const NoGil no_gil;
        status = mcpg_group_update_ranks(held->handle, add.data(), static_cast<uint32_t>(add.size()), remove.data(),
                                         static_cast<uint32_t>(remove.size()), expected_epoch.value_or(MCPG_ANY_EPOCH),
                                         wait_us, reply.get());
        text = status == MCPG_OK ? std::string(reply->text) : held->context->error();
    }
    if (status != MCPG_OK) {
        return py::make_tuple(false, static_cast<int>(MCPG_PROPOSAL_REJECTED), mcpg_status_name(status), 0,
                              std::vector<uint32_t>(), text.empty() ? std::string(mcpg_status_text(status)) : text);
    }
    const std::vector<uint32_t> dropped(reply->dropped, reply->dropped + reply->dropped_count);
    return py::make_tuple(true, static_cast<int>(reply->result), mcpg_status_name(reply->reason), reply->new_epoch,
                          dropped, text);
}

/* (status name, text, term, epoch, failed ranks, first failed number, resume number) */
py::tuple sync_after_failure(const GroupArg &group, uint64_t timeout_us) {
    const auto held = backend_of(group)->group();
    const auto reply = std::make_unique<mcpg_sync_reply_t>();
    mcpg_status_t status = MCPG_OK;
    std::string text;
    {
        const NoGil no_gil;
        status = mcpg_group_sync_after_failure(held->handle, timeout_us, reply.get());
        text = status == MCPG_OK ? std::string() : held->context->error();
    }
    std::vector<uint32_t> failed;
    for (uint32_t slot = 0; status == MCPG_OK && slot < reply->slot_count; slot += 1) {
        if (reply->failed[slot] != 0) {
            failed.push_back(slot);
        }
    }
    if (status != MCPG_OK && text.empty()) {
        text = mcpg_status_text(status);
    }
    return py::make_tuple(mcpg_status_name(status), text, reply->term, reply->epoch, failed, reply->first_failed_seq,
                          reply->resume_seq);
}

/* (term, epoch, active ranks, their incarnations, next operation number) */
py::tuple view_tuple(const mcpg_view_t &view) {
    std::vector<uint32_t> active;
    std::vector<uint64_t> incarnations;
    for (uint32_t slot = 0; slot < view.slot_count; slot += 1) {
        if (view.active[slot] != 0) {
            active.push_back(slot);
            incarnations.push_back(view.incarnation[slot]);
        }
    }
    return py::make_tuple(view.term, view.epoch, py::tuple(py::cast(active)), py::tuple(py::cast(incarnations)),
                          view.start_seq);
}

py::tuple get_view(const GroupArg &group) {
    const auto held = backend_of(group)->group();
    const auto view = std::make_unique<mcpg_view_t>();
    check(mcpg_group_view(held->handle, view.get()), *held, "get_view");
    return view_tuple(*view);
}

py::tuple safe_point(const GroupArg &group) {
    const auto held = backend_of(group)->group();
    const auto view = std::make_unique<mcpg_view_t>();
    {
        const NoGil no_gil;
        check(mcpg_group_safe_point(held->handle, view.get()), *held, "safe_point");
    }
    return view_tuple(*view);
}

void join_group(const GroupArg &group, uint64_t timeout_us) {
    const auto held = backend_of(group)->group();
    const NoGil no_gil;
    check(mcpg_group_join(held->handle, timeout_us), *held, "join_group");
}

/* ---- Works ---- */

at::Tensor failed_ranks_hint(const WorkArg &work) {
    const auto ours = c10::dynamic_intrusive_pointer_cast<MooncakeWork>(work);
    if (!ours) {
        return at::Tensor();
    }
    const NoGil no_gil;
    const std::vector<int32_t> hint = ours->failed_ranks();
    at::Tensor tensor = at::empty({static_cast<int64_t>(hint.size())}, at::kInt);
    std::copy(hint.begin(), hint.end(), tensor.data_ptr<int32_t>());
    return tensor;
}

std::optional<bool> local_success(const WorkArg &work) {
    const auto ours = c10::dynamic_intrusive_pointer_cast<MooncakeWork>(work);
    if (!ours) {
        return std::nullopt;
    }
    const NoGil no_gil;
    return ours->local_success();
}

/* ---- The process ---- */

struct ContextRef {
    Context *const context = Context::try_acquire();
    ~ContextRef() { Context::release(context); }
};

std::string status_json() {
    const NoGil no_gil;
    const ContextRef ref;
    if (ref.context == nullptr) {
        return "{}";
    }
    std::string text(mcpg_context_status_json(ref.context->handle(), nullptr, 0) + 4096, '\0');
    size_t length = mcpg_context_status_json(ref.context->handle(), text.data(), text.size());
    while (length >= text.size()) { /* bounded: the text grows only while links or groups are added */
        text.resize(length + 4096);
        length = mcpg_context_status_json(ref.context->handle(), text.data(), text.size());
    }
    text.resize(length);
    return text;
}

std::vector<int> rank_states() {
    const NoGil no_gil;
    const ContextRef ref;
    std::vector<int> result;
    if (ref.context != nullptr) {
        std::vector<mcpg_rank_state_t> states(MCPG_MAX_RANKS, MCPG_RANK_OFFLINE);
        const uint32_t count =
            mcpg_context_rank_states(ref.context->handle(), states.data(), static_cast<uint32_t>(states.size()));
        result.assign(states.begin(), states.begin() + count);
    }
    return result;
}

std::string coordinator_address() {
    const ContextRef ref;
    char buf[512] = "";
    if (ref.context != nullptr) {
        (void)mcpg_context_coordinator(ref.context->handle(), buf, sizeof buf);
    }
    return buf;
}

using TimeoutSetter = mcpg_status_t (*)(mcpg_context_t *, uint64_t);

/* For the contexts to come, and for the one there is (set may be NULL: it cannot be changed there). */
void set_timer(uint64_t mcpg_timers_t::*timer, TimeoutSetter set, uint64_t us) {
    {
        const std::lock_guard<std::mutex> lock(settings().mutex);
        settings().timers.*timer = us;
    }
    const NoGil no_gil;
    const ContextRef ref;
    if (ref.context != nullptr && set != nullptr) {
        const mcpg_status_t status = set(ref.context->handle(), us);
        if (status != MCPG_OK) {
            throw Error(status, ref.context->error());
        }
    }
}

void set_host_ip(const std::string &ip) {
    const std::lock_guard<std::mutex> lock(settings().mutex);
    settings().host_ip = ip;
}

/* (kind, group name, epoch, global rank, state), or None when the time passed or no more events will come. */
py::object next_event(EventQueue &queue, double timeout_s) {
    Event event = {};
    bool got = false;
    {
        const NoGil no_gil;
        got = queue.pop(timeout_s, &event);
    }
    if (!got) {
        return py::none();
    }
    return py::make_tuple(static_cast<int>(event.kind), event.group, event.epoch, event.global_rank,
                          static_cast<int>(event.state));
}

/* A coordinator in this process, for launchers and tests. */
class Coordinator {
  public:
    Coordinator(const std::optional<std::string> &bind, uint64_t term, bool fresh) {
        mcpg_coordinator_config_t config = {};
        config.struct_size = sizeof config;
        config.bind = bind ? bind->c_str() : nullptr;
        config.term = term;
        config.fresh = fresh;
        {
            const std::lock_guard<std::mutex> lock(settings().mutex);
            config.timers = settings().timers;
        }
        char text[512] = "";
        const NoGil no_gil;
        const mcpg_status_t status = mcpg_coordinator_start(&config, &handle_, text, sizeof text);
        if (status != MCPG_OK) {
            throw Error(status, text[0] != '\0' ? std::string(text) : std::string(mcpg_status_text(status)));
        }
    }
    ~Coordinator() { stop(); }
    Coordinator(const Coordinator &) = delete;
    Coordinator &operator=(const Coordinator &) = delete;
    std::string address() {
        const std::lock_guard<std::mutex> lock(mutex_);
        char buf[512] = "";
        (void)mcpg_coordinator_address(running(), buf, sizeof buf);
        return buf;
    }
    void report_exit(uint32_t rank, int64_t pid) {
        const NoGil no_gil;
        const std::lock_guard<std::mutex> lock(mutex_);
        const mcpg_status_t status = mcpg_coordinator_report_exit(running(), rank, pid);
        if (status != MCPG_OK) {
            throw Error(status, "report_exit of rank " + std::to_string(rank) + ": " + mcpg_status_text(status));
        }
    }
    void stop() {
        const WithoutGil without_gil;
        const std::lock_guard<std::mutex> lock(mutex_);
        mcpg_coordinator_stop(std::exchange(handle_, nullptr));
    }

  private:
    mcpg_coordinator_t *running() {
        if (handle_ == nullptr) {
            throw Error(MCPG_INVALID_STATE, "the coordinator was stopped: start a new one");
        }
        return handle_;
    }
    std::mutex mutex_;
    mcpg_coordinator_t *handle_ = nullptr;
};

void bind_classes(py::module_ &m) {
    py::class_<MooncakeWork, c10d::Work, c10::intrusive_ptr<MooncakeWork>>(m, "MooncakeWork")
        .def_property_readonly("seq", &MooncakeWork::getSequencenumber);
    py::class_<MooncakeOptions, c10d::Backend::Options, c10::intrusive_ptr<MooncakeOptions>>(m, "Options")
        .def(py::init([](const std::string &backend, double timeout_s) {
            return c10::make_intrusive<MooncakeOptions>(
                backend, std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000.0)));
        }))
        .def_readwrite("is_extension", &MooncakeOptions::is_extension)
        .def_readwrite("auto_deactivate_on_failure", &MooncakeOptions::auto_deactivate_on_failure)
        .def_readwrite("auto_sync_on_failure", &MooncakeOptions::auto_sync_on_failure)
        .def_readwrite("max_group_size", &MooncakeOptions::max_group_size)
        .def_readwrite("group_key", &MooncakeOptions::group_key)
        .def_readwrite("active_ranks", &MooncakeOptions::active_ranks);
    py::class_<MooncakeBackend, c10d::Backend, c10::intrusive_ptr<MooncakeBackend>>(m, "MooncakeBackend")
        .def_property_readonly("options", &MooncakeBackend::getBackendOptions)
        .def("size", &MooncakeBackend::size_now)
        .def("get_error", [](MooncakeBackend &backend) { return static_cast<int>(backend.getError()); });
    py::class_<MooncakeProcessGroup, c10d::ProcessGroup, c10::intrusive_ptr<MooncakeProcessGroup>>(
        m, "MooncakeProcessGroup");
    py::class_<EventQueue, std::shared_ptr<EventQueue>>(m, "EventQueue")
        .def("next", next_event)
        .def("closed", &EventQueue::closed);
    py::class_<Coordinator>(m, "Coordinator")
        .def(py::init<const std::optional<std::string> &, uint64_t, bool>())
        .def_property_readonly("address", &Coordinator::address)
        .def("report_exit", &Coordinator::report_exit)
        .def("stop", &Coordinator::stop);
}

void bind_functions(py::module_ &m) {
    m.def("create", create);
    m.def("active_ranks", [](const GroupArg &group) { return backend_of(group)->mirror(); });
    m.def("capacity", [](const GroupArg &group) { return backend_of(group)->capacity(); });
    m.def("is_isolated",
          [](const GroupArg &group) { return mcpg_group_is_isolated(backend_of(group)->group()->handle); });
    m.def("peer_state", peer_state);
    m.def("update_ranks", update_ranks);
    m.def("sync_after_failure", sync_after_failure);
    m.def("join_group", join_group);
    m.def("view", get_view);
    m.def("safe_point", safe_point);
    m.def("failed_ranks_hint", failed_ranks_hint);
    m.def("local_success", local_success);
    m.def("status_json", status_json);
    m.def("rank_states", rank_states);
    m.def("coordinator_address", coordinator_address, py::call_guard<NoGil>());
    m.def("subscribe", subscribe, py::call_guard<NoGil>());
    m.def("shutdown_everything", shutdown_everything);
    m.def("set_host_ip", set_host_ip);
    m.def("set_collective_timeout_us", [](uint64_t us) {
        set_timer(&mcpg_timers_t::collective_timeout_us, mcpg_context_set_collective_timeout, us);
    });
    m.def("set_p2p_timeout_us",
          [](uint64_t us) { set_timer(&mcpg_timers_t::p2p_timeout_us, mcpg_context_set_p2p_timeout, us); });
    m.def("set_reconcile_us", [](uint64_t us) { set_timer(&mcpg_timers_t::reconcile_us, nullptr, us); });
    m.def("version", [] { return mcpg_version(); });
    m.def("status_value", [](const std::string &name) {
        for (int value = MCPG_IN_PROGRESS; value >= MCPG_NOT_PERMITTED; value -= 1) {
            if (name == mcpg_status_name(static_cast<mcpg_status_t>(value))) {
                return value;
            }
        }
        return static_cast<int>(MCPG_INTERNAL);
    });
}

} // namespace
} // namespace mooncake_torch

PYBIND11_MODULE(_C, m) {
    using namespace mooncake_torch;
    const py::module_ distributed = py::module_::import("torch.distributed"); /* makes the base classes known */
    m.doc() = "Binding of libmooncake_pg; use mooncake.pg.";
    error_class = PyErr_NewExceptionWithDoc(
        "mooncake.pg.MooncakeError",
        "A call of mooncake.pg or of a mooncake group failed. code: the status name; status: its number.",
        distributed.attr("DistBackendError").ptr(), nullptr);
    if (error_class == nullptr) {
        throw py::error_already_set();
    }
    m.attr("MooncakeError") = py::reinterpret_borrow<py::object>(error_class);
    m.attr("torch_version") = TORCH_VERSION;
    py::register_exception_translator(translate);
    bind_classes(m);
    bind_functions(m);
}
