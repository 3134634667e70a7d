#include "app/cli/result_file.h"

#include "base/error.h"
#include "base/whole_file.h"

#include <fmt/format.h>

namespace kvscope::cli {
namespace {

void refuseFault(const std::string& file, const std::string& fault) {
    if (!fault.empty())
        throw Error(ErrorKind::Storage, fmt::format("cannot write '{}': {}", file, fault),
                    "choose another name, in a folder that is writable and has space");
}

} // namespace

void checkResultFile(const std::string& file) {
    if (!file.empty()) refuseFault(file, whyUnwritable(file));
}

void writeResultFile(const std::string& file, const std::function<void(std::ostream&)>& write) {
    refuseFault(file, writeWholeFile(file, write));
}

} // namespace kvscope::cli
