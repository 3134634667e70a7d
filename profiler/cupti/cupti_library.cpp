#include "profiler/cupti/cupti_library.h"

#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <vector>

namespace kvscope {

const CuptiLibrary* CuptiLibrary::find(std::string& refusal) {
    static const std::unique_ptr<const CuptiLibrary> library = load();
    if (library == nullptr) refusal = "libcupti was not found";
    return library.get();
}

std::unique_ptr<const CuptiLibrary> CuptiLibrary::load() {
    std::vector<std::string> names;
    if (const char* path = std::getenv("KVSCOPE_CUPTI_PATH")) names.emplace_back(path);
    names.emplace_back("libcupti.so.13");
    if (const char* home = std::getenv("CUDA_HOME")) names.push_back(std::string(home) + "/lib64/libcupti.so.13");
    for (const char* folder :
         {"/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"})
        names.push_back(std::string(folder) + "/libcupti.so.13");
    for (const std::string& name : names) {
        void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) continue;
        std::unique_ptr<CuptiLibrary> library(new CuptiLibrary);
        library->handle_ = handle;
        const link_map* place = nullptr;
        if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&place)) == 0 && place->l_name != nullptr) {
            const std::string path = place->l_name;
            library->folder_ = path.substr(0, path.find_last_of('/') + 1);
            if (!library->folder_.empty()) library->folder_.pop_back();
        }
        return library;
    }
    return nullptr;
}

std::string CuptiLibrary::nameOf(int result) const {
    int (*resultString)(int, const char**) = nullptr; // cuptiGetResultString
    const char* text = nullptr;
    if (find(resultString, "cuptiGetResultString")) resultString(result, &text);
    return text != nullptr ? text : "unknown error";
}

void* CuptiLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

} // namespace kvscope
