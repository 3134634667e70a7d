#include "core/model/safetensors.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "core/model/mapped_watch.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace {

constexpr std::uint64_t kLargestHeader = 100'000'000; // the format's own limit
constexpr std::size_t kLongestFileName = 255;         // of file systems

[[noreturn]] void refuse(const std::string& origin, const std::string& what) {
    throw Error(ErrorKind::BadInput, origin + ": " + what, "the file is damaged or incomplete: download it again");
}

std::optional<std::size_t> elementBytes(std::string_view dtype) {
    constexpr std::pair<std::string_view, std::size_t> sizes[] = {
        {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},  {"U32", 4},     {"F16", 2},    {"BF16", 2},
        {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
    for (const auto& [name, size] : sizes)
        if (name == dtype) return size;
    return std::nullopt;
}

} // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
    const auto fail = [&](const char* doing) {
        const char* const why = errno == EINVAL ? "it is a pipe or a device, not a file" : std::strerror(errno);
        throw Error(ErrorKind::BadInput, fmt::format("cannot {} {}: {}", doing, path, why),
                    "check the file's name and permissions");
    };
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe must not wait for its writer
    if (file < 0) fail("open");
    struct stat status {};
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(file);
        errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
        fail("read");
    }
    size_ = std::size_t(status.st_size);
    if (size_ > 0) {
        void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped == MAP_FAILED) {
            const int reason = errno;
            close(file);
            errno = reason;
            fail("map");
        }
        data_ = static_cast<const std::byte*>(mapped);
    }
    close(file);
    watchMapped(bytes(), path_, status);
}

MappedFile::~MappedFile() {
    unwatchMapped(bytes());
    if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

std::string textOfFile(const std::filesystem::path& path) {
    const MappedFile file(path.string());
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, std::string origin) {
    if (bytes.size() < 8) refuse(origin, fmt::format("{} bytes are too few for a safetensors file", bytes.size()));
    std::uint64_t headerBytes = 0;
    std::memcpy(&headerBytes, bytes.data(), 8);
    if (headerBytes > kLargestHeader || headerBytes > bytes.size() - 8)
        refuse(origin, fmt::format("the header claims {} bytes, the file has {}", headerBytes, bytes.size()));
    const auto* text = reinterpret_cast<const char*>(bytes.data() + 8);
    const auto header = parseJson({text, std::size_t(headerBytes)});
    if (header.is_discarded() || !header.is_object()) refuse(origin, "the header is not a JSON object");
    const auto data = bytes.subspan(8 + headerBytes);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const auto& item : header.items()) {
        const std::string& name = item.key();
        const auto& entry = item.value();
        if (name == "__metadata__") continue;
        const auto wrong = [&](const std::string& what) {
            refuse(origin, fmt::format("tensor '{}' {}", shown(name), what));
        };
        if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() || !entry.contains("shape") ||
            !entry["shape"].is_array() || !entry.contains("data_offsets") || !entry["data_offsets"].is_array() ||
            entry["data_offsets"].size() != 2)
            wrong("lacks dtype, shape or data_offsets");
        TensorView view;
        view.dtype = entry["dtype"].get<std::string>();
        view.file = origin;
        const auto element = elementBytes(view.dtype);
        if (!element) wrong(fmt::format("has the unknown type '{}'", shown(view.dtype)));
        std::uint64_t want = *element;
        for (const auto& size : entry["shape"]) {
            if (!size.is_number_unsigned()) wrong("has a shape that is not a list of whole numbers");
            const auto n = size.get<std::uint64_t>();
            if (n > std::uint64_t(INT64_MAX) || __builtin_mul_overflow(want, n, &want))
                wrong("has an impossibly large shape");
            view.shape.push_back(std::int64_t(n));
        }
        if (!entry["data_offsets"][0].is_number_unsigned() || !entry["data_offsets"][1].is_number_unsigned())
            wrong("has offsets that are not whole numbers");
        const auto begin = entry["data_offsets"][0].get<std::uint64_t>(),
                   end = entry["data_offsets"][1].get<std::uint64_t>();
        if (begin > end || end > data.size())
            wrong(fmt::format("lies at bytes {} to {}, beyond the {} bytes of data", begin, end, data.size()));
        if (end - begin != want) wrong(fmt::format("needs {} bytes for its shape and has {}", want, end - begin));
        view.bytes = data.subspan(begin, end - begin);
        ranges.emplace_back(begin, end);
        insert(name, std::move(view));
    }
    // A header length that is off by a little still gives a header, and every tensor shifted: it then leaves bytes
    // over.
    std::sort(ranges.begin(), ranges.end());
    for (std::size_t i = 1; i < ranges.size(); ++i)
        if (ranges[i].first < ranges[i - 1].second)
            refuse(origin, fmt::format("two tensors overlap at byte {} of the data", ranges[i].first));
    std::uint64_t covered = 0;
    for (const auto& [begin, end] : ranges) {
        if (begin > covered)
            refuse(origin, fmt::format("bytes {} to {} of the data belong to no tensor", covered, begin));
        covered = end;
    }
    if (covered != data.size())
        refuse(origin, fmt::format("the tensors end at byte {} of {} bytes of data", covered, data.size()));
}

const TensorView* TensorTable::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

bool TensorTable::insert(std::string name, TensorView view) {
    return tensors_.emplace(std::move(name), std::move(view)).second;
}

std::vector<std::string> shardNames(std::string_view indexJson, const std::string& origin) {
    const auto index = parseJson(indexJson);
    if (index.is_discarded() || !index.is_object() || !index.contains("weight_map") ||
        !index["weight_map"].is_object() || index["weight_map"].empty())
        refuse(origin, "there is no weight_map");
    std::set<std::string> names;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
        if (!file.is_string()) refuse(origin, fmt::format("the file of tensor '{}' is not a name", shown(tensor)));
        const auto name = file.get<std::string>();
        if (name.empty() || name == "." || name == ".." ||
            name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: the file name '{}' points outside the model's folder", origin, shown(name)),
                        "shards must lie beside their index");
        if (name.size() > kLongestFileName)
            refuse(origin, fmt::format("the file name '{}' is {} characters long", shown(name), name.size()));
        names.insert(name);
    }
    return {names.begin(), names.end()};
}

std::optional<DType> weightType(std::string_view dtype) {
    constexpr std::pair<std::string_view, DType> types[] = {
        {"F32", DType::F32},   {"F16", DType::F16},   {"BF16", DType::BF16}, {"Q8_0", DType::Q8_0},
        {"Q4_0", DType::Q4_0}, {"Q4_1", DType::Q4_1}, {"Q5_0", DType::Q5_0}, {"Q5_1", DType::Q5_1},
        {"Q4_K", DType::Q4_K}, {"Q5_K", DType::Q5_K}, {"Q6_K", DType::Q6_K}};
    for (const auto& [name, type] : types)
        if (name == dtype) return type;
    return std::nullopt;
}

} // namespace kvscope
