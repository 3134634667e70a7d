#include "core/session/stage_clock.h"

#ifdef KVSCOPE_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>

#include <map>
#include <string>
#endif

namespace kvscope {

#ifdef KVSCOPE_HAVE_NVTX
namespace {

struct Domain {
    nvtxDomainHandle_t handle = nvtxDomainCreateA("kvscope");
    std::map<std::string_view, nvtxStringHandle_t> names; // filled once, read-only afterwards
    Domain() {
        const auto add = [&](std::string_view name) {
            names[name] = nvtxDomainRegisterStringA(handle, std::string(name).c_str());
        };
        for (const auto name : kStageNames) add(name);
        for (const auto name : kStepStageNames) add(name);
        for (const Phase phase : {Phase::Prefill, Phase::Decode}) add(nameOf(phase));
    }
};

const Domain& domain() {
    static const Domain instance;
    return instance;
}

} // namespace

namespace {

void push(std::string_view name, const int* step) {
    const auto found = domain().names.find(name);
    if (found == domain().names.end() || !found->second) return; // no tool is attached
    nvtxEventAttributes_t event{};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = found->second;
    if (step != nullptr) {
        event.payloadType = NVTX_PAYLOAD_TYPE_INT32;
        event.payload.iValue = *step;
    }
    nvtxDomainRangePushEx(domain().handle, &event);
}

} // namespace

void nvtxPush(std::string_view name) { push(name, nullptr); }
void nvtxPush(std::string_view name, int step) { push(name, &step); }

void nvtxPop() {
    if (domain().handle) nvtxDomainRangePop(domain().handle);
}
#else
void nvtxPush(std::string_view) {}
void nvtxPush(std::string_view, int) {}
void nvtxPop() {}
#endif

} // namespace kvscope
