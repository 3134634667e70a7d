// Memory-mapped safetensors: one file, or a sharded set with its index.
#pragma once

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// A file mapped read-only. @throws Error(BadInput) naming the file
class MappedFile {
public:
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    std::span<const std::byte> bytes() const { return {data_, size_}; }
    const std::string& path() const { return path_; }

private:
    std::string path_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

/// A whole file. @throws as MappedFile
std::string textOfFile(const std::filesystem::path& path);

struct TensorView {
    std::string dtype; // as written: "BF16", "F16", "F32", ...
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes; // any alignment
    std::string file;
};

/// Tensors by name.
class TensorTable {
public:
    const TensorView* find(std::string_view name) const;
    const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
    /// False, and nothing changed, when the name is taken.
    bool insert(std::string name, TensorView view);

private:
    std::map<std::string, TensorView, std::less<>> tensors_;
};

/// Header of one file, fully checked: lengths, types, shapes, and that the tensors cover the data without gap or
/// overlap.
class SafetensorsFile : public TensorTable {
public:
    /// `bytes` outlives the object. @throws Error(BadInput) naming `origin` and the tensor
    SafetensorsFile(std::span<const std::byte> bytes, std::string origin);
};

/// Names of the files a `model.safetensors.index.json` lists. @throws Error(BadInput), also for names with path
/// separators
std::vector<std::string> shardNames(std::string_view indexJson, const std::string& origin);

/// The type of weights that a file calls `dtype`; nothing for types in which this program takes no weights.
std::optional<DType> weightType(std::string_view dtype);

} // namespace kvscope
