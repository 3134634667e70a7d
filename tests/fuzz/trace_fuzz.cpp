// Opening a trace and reading what every view reads first.
#include "profiler/read/trace_list.h"
#include "profiler/read/trace_reader.h"
#include "tests/fuzz/fuzz_target.h"

#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace kvscope;

namespace {

/// The bytes as a file in memory with a name.
class MemoryFile {
public:
    MemoryFile(const std::uint8_t* data, std::size_t size) : handle_(memfd_create("fuzzed.kvtrace", MFD_CLOEXEC)) {
        if (handle_ < 0 || write(handle_, data, size) != ssize_t(size)) std::abort();
    }
    ~MemoryFile() { close(handle_); }
    std::string path() const { return "/proc/self/fd/" + std::to_string(handle_); }

private:
    int handle_;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const MemoryFile file(data, size);
    (void)listTrace(file.path()); // reads pages without SQLite
    return fuzz::expectOnlyErrors([&] {
        const TraceReader reader(file.path());
        for (const RunRow& run : reader.runs()) {
            (void)reader.steps(run.runId);
            (void)reader.tokens(run.runId, 0);
            (void)reader.breakdown(run.runId);
            (void)reader.selections(run.runId, 0, 0, 0);
        }
    });
}
