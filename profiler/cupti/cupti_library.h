// libcupti, loaded at run time: the program starts and works without it.
#pragma once

#include <memory>
#include <string>
#include <type_traits>

namespace kvscope {

/// The library is looked for once per process and never closed, because CUPTI's own threads may outlive its user.
class CuptiLibrary {
public:
    /// Looks at KVSCOPE_CUPTI_PATH, through the loader and in the CUDA toolkit's usual folders.
    /// @return null, with the reason, where there is none
    static const CuptiLibrary* find(std::string& refusal);

    /// Sets `function` to the library's function of this name. @return false if this version of the library has none
    template <class Function> bool find(Function& function, const char* name) const {
        function = reinterpret_cast<std::remove_reference_t<Function>>(symbol(name));
        return function != nullptr;
    }
    /// What the library calls a CUptiResult, e.g. "CUPTI_ERROR_NOT_READY".
    std::string nameOf(int result) const;
    /// Where the library that was found lies, e.g. "/usr/local/cuda/lib64"; empty: the loader does not say.
    const std::string& folder() const { return folder_; }

private:
    CuptiLibrary() = default;
    static std::unique_ptr<const CuptiLibrary> load();
    void* symbol(const char* name) const;

    void* handle_ = nullptr;
    std::string folder_;
};

} // namespace kvscope
