#include "core/cuda/device_upload.h"

#include "base/elements.h"
#include "base/extents.h"
#include "core/cuda/gpu_device.h"
#include "kernels/cpu/quantised.h"
#include "kernels/cuda/linear/packed.h"
#include "kernels/half.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace kvscope {
namespace {

constexpr std::size_t kStagingBytes = std::size_t(32) << 20;

std::uint16_t roundToBf16(float value) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return 0x7fc0;
    bits += 0x7fff + (bits >> 16 & 1); // to nearest even
    return std::uint16_t(bits >> 16);
}

const char* rowOf(const WeightMatrix& w, int row) {
    return RowsOf(static_cast<const char*>(w.data), rowBytes(w.type, w.cols))[row];
}

void rowToFloats(const WeightMatrix& w, int row, float* out) {
    const char* from = rowOf(w, row);
    if (isQuantised(w.type))
        cpu::dequantise(w.type, from, 0, w.cols, out);
    else
        for (int c = 0; c < w.cols; ++c) out[c] = elementAt(from, w.type, c);
}

void copyToDevice(const void* to, const void* from, std::size_t bytes) {
    cuda::check(cudaMemcpy(const_cast<void*>(to), from, bytes, cudaMemcpyHostToDevice), "copying the weights");
}

} // namespace

DType deviceType(const WeightMatrix& w) { return isQuantised(w.type) ? w.type : DType::BF16; }
DType deviceType(const WeightMatrix& a, const WeightMatrix& b) {
    return deviceType(a) == deviceType(b) ? deviceType(a) : DType::BF16;
}

DeviceUpload::DeviceUpload() {
    launch_.multiprocessors = usableGpu().multiProcessorCount;
    for (cuda::DeviceMemory& staging : staging_)
        staging = cuda::DeviceMemory(kStagingBytes, "preparing to copy weights");
}

DeviceUpload::~DeviceUpload() { cudaStreamSynchronize(launch_.stream); }

/// The bytes of `count` rows in the format `type`: in the mapped file where the rows have this format already, else a
/// converted copy that is valid until the next call.
const void* DeviceUpload::rowsAs(const WeightMatrix& w, int first, int count, DType type) {
    if (w.type == type) return rowOf(w, first);
    const Extents<int, int> at(count, w.cols);
    halves_.resize(at.size());
    row_.resize(at.under(0));
    for (int r = 0; r < count; ++r) {
        rowToFloats(w, first + r, row_.data());
        std::transform(row_.begin(), row_.end(), at.part(std::span(halves_), r).begin(), roundToBf16);
    }
    return halves_.data();
}

/// Packs rows into tiles. With `low` alone its rows fill the tiles; with `high` 8 rows of each make a tile.
void DeviceUpload::pack(const cuda::DeviceMatrix& to, int firstTile, const WeightMatrix& low,
                        const WeightMatrix* high) {
    const int perTile = high == nullptr ? 16 : 8;
    const std::size_t bytes = rowBytes(to.type, to.cols);
    const RowsOf tiles(const_cast<std::byte*>(to.packed),
                       {cuda::packedChunks(to.type, to.cols), cuda::packedChunk(to.type).bytes});
    const int slab = std::max(1, int(kStagingBytes / bytes) / perTile) * perTile;
    if (Elements(slab, bytes) > kStagingBytes)
        throw Error(ErrorKind::Unsupported, "a row of this model's weights is too long for the GPU backend",
                    "use --backend cpu");
    for (int first = 0; first < low.rows; first += slab) {
        const int count = std::min(slab, low.rows - first);
        const WeightMatrix* parts[] = {&low, high};
        for (int i = 0; i < 2; ++i) // the copy waits for the kernel before, which reads the staging memory
            if (parts[i] != nullptr)
                copyToDevice(staging_[i].data(), rowsAs(*parts[i], first, count, to.type), Elements(count, bytes));
        cuda::packRows(launch_, to.type, staging_[0].data(), high == nullptr ? nullptr : staging_[1].data(),
                       high == nullptr ? count : 2 * count, to.cols, tiles[firstTile + first / perTile]);
    }
}

void DeviceUpload::rows(const cuda::DeviceMatrix& to, const WeightMatrix& from, int firstRow) {
    if (to.packed != nullptr) return pack(to, firstRow / 16, from, nullptr);
    const RowsOf target(to.data, from.cols);
    const int slab = std::max(1, int(kStagingBytes / (target.width() * 2)));
    for (int first = 0; first < from.rows; first += slab) {
        const int count = std::min(slab, from.rows - first);
        copyToDevice(target[firstRow + first], rowsAs(from, first, count, DType::BF16), Elements(count, from.cols, 2));
    }
}

void DeviceUpload::gated(const cuda::DeviceMatrix& to, const WeightMatrix& gate, const WeightMatrix& up) {
    if (to.packed != nullptr) return pack(to, 0, gate, &up);
    const Extents<int, int> at(to.rows, gate.cols);
    std::vector<std::uint16_t> both(at.size());
    for (const bool isUp : {false, true})
        for (int row = 0; row < gate.rows; ++row)
            std::memcpy(&both[at.first(cuda::interleavedRow(row, isUp))], rowsAs(isUp ? up : gate, row, 1, DType::BF16),
                        at.under(0) * 2);
    copyToDevice(to.data, both.data(), both.size() * 2);
}

void DeviceUpload::asFloats(const float* to, const WeightMatrix& from) {
    const Extents<int, int> at(from.rows, from.cols);
    std::vector<float> values(at.size());
    for (int row = 0; row < from.rows; ++row) rowToFloats(from, row, at.part(std::span(values), row).data());
    floats(to, values);
}

void DeviceUpload::floats(const float* to, const std::vector<float>& from) {
    if (!from.empty()) copyToDevice(to, from.data(), from.size() * sizeof(float));
}

} // namespace kvscope
