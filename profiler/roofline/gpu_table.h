// Devices that a decode step's cost can be predicted for: a table compiled in, and the user's own entries over it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// GB = 1e9 bytes, GiB = 2^30. Numbers are nominal (docs/roofline.md) unless `measured` names their
/// key.
struct GpuSpec {
    std::string name;  // of the table, e.g. "h200"
    std::string title; // as the driver names it, e.g. "NVIDIA H200"
    std::string link;  // of host and device, e.g. "PCIe 5 x16"
    std::string note;
    std::string processor;             // of kLocalCpu: the processor that was measured
    double readGbps = 0;               // device memory, pure reads
    double tflops = 0;                 // dense bf16 products summed in float32, 1e12 operations per second
    double memoryGib = 0;              // device memory
    double linkGbps = 0;               // host to device, as transfers of KV blocks reach it
    double latencyUs = 0;              // of one transfer, beyond its bytes
    double cacheMib = 0;               // last-level cache that bytes read again and again stay in; 0: not considered
    double cacheReadGbps = 0;          // of that cache
    double hostGib = 0;                // host memory for offloaded blocks; 0: not considered
    std::vector<std::string> measured; // keys of the measured numbers, as in the file

    bool isMeasured(std::string_view key) const;
};

class GpuTable {
public:
    /// The built-in table.
    GpuTable();
    /// Built in, then the user's file where there is one, then `file` unless it is empty. Later entries replace earlier
    /// ones of the same name. @throws Error(BadInput) naming the file, the entry and the key
    static GpuTable load(const std::string& file = {});
    /// Adds or replaces. `origin` names the text in errors. @throws Error(BadInput)
    void merge(std::string_view json, const std::string& origin);

    const std::vector<GpuSpec>& all() const { return specs_; }
    const GpuSpec* find(std::string_view name) const; // null: not there
    /// @throws Error(BadInput) listing the known names
    const GpuSpec& get(std::string_view name) const;
    /// The machine's own entry if it was measured, else the first.
    const GpuSpec& preferred() const;

private:
    std::vector<GpuSpec> specs_;
};

/// Names of the entries that `roofline --measure` writes.
inline constexpr const char *kLocalGpu = "local", *kLocalCpu = "local-cpu";

/// gpus.json in the user's configuration folder; empty where there is no such folder.
std::string userGpuFile();
/// Tries whether saveGpu() can write the file, before a measurement of minutes. @throws Error as saveGpu()
void checkGpuFile(const std::string& file);
/// Puts an entry into a table file, which is made if it is not there. @throws Error(BadInput | Storage)
void saveGpu(const GpuSpec& spec, const std::string& file);

} // namespace kvscope
