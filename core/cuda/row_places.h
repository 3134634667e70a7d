// Where the rows of a step lie, for kernels that work on rows with memory of their own as on a session's sequences. The
// kernels count from one address of a layer, and tables say how far from it each row's arrays begin. A row that joins
// or leaves changes entries of these tables and nothing else.
#pragma once

#include "core/cuda/cuda_sequences.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

class RowPlaces {
public:
    /// For steps of up to `rows` rows. Everything passed must outlive this object.
    RowPlaces(const CudaEngineOptions& options, const DeviceModel& model, const cuda::AttentionShape& shape, int rows);

    /// Asks the arena for the tables and for the rows' states.
    void plan(DeviceArena& arena);
    /// After the arena has been taken: points the layers and the row table of the steps' sequences to the tables.
    void open(CudaSequences& steps);

    /// Whether the kernels reach all of the row's arrays. They reach several TiB of addresses, and a GPU's memory lies
    /// closer together.
    bool reaches(const CudaSequences& row) const;
    /// Puts a row into a place: its tables, and how its tokens are chosen. layout, options: those of the row
    void put(int place, const CudaSequences& row, const BatchLayout& layout, const CudaEngineOptions& options);
    /// How many blocks behind the kernels' origin this address lies.
    std::int64_t blocksTo(const __nv_bfloat16* blocks) const { return far(blocks, cuda::blockBytes(shape_)); }
    /// Marks the places from `rows` to `end` as free. A free place has the tables of place 0, so that what kernels read
    /// before they ask whether a row is active lies in somebody's memory.
    void clear(int rows, int end);
    /// Copies the tables and states of the first `rows` places to the device, where something has been put or cleared.
    void copyTables(cudaStream_t stream);

    /// Sets the token that each place feeds next and its position; the other places up to `end` are idle. Copies only
    /// where the device holds something else.
    void feed(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions, int end,
              cudaStream_t stream);
    /// Notes what a step has chosen: the places in use feed it next.
    void advance(const std::int32_t* chosen);

    const cuda::SampleArgs* sampling() const { return device_.sampling; }

private:
    /// One state for each place, and the tables [layer][table][place*kvHeads + g]. The inputs of a step come first.
    struct States {
        std::int32_t *next = nullptr, *position = nullptr;
        std::uint8_t* active = nullptr;
        std::int32_t* slots = nullptr;
        std::int64_t *cosFirst = nullptr, *sinFirst = nullptr;
        cuda::SampleArgs* sampling = nullptr;
        PlantedStream* planted = nullptr; // [layer][place]
        std::int64_t* tables = nullptr;
        std::size_t inputBytes = 0, bytes = 0;
    };
    static constexpr std::size_t kTables = sizeof(LayerPlaces) / sizeof(std::int64_t*);

    States statesAt(std::byte* base) const;
    LayerPlaces placesOf(const States& states, LayerId layer) const;
    template <class T> T* origin() const { return reinterpret_cast<T*>(origin_); }
    std::int64_t far(const void* at, std::size_t unit) const;

    const CudaEngineOptions& options_;
    const DeviceModel& model_;
    const cuda::AttentionShape shape_;
    const int rows_, heads_;
    std::byte *region_ = nullptr, *hostRegion_ = nullptr;
    States device_, host_;
    std::uintptr_t origin_ = 0; // an address before all rows' memory, from which the kernels count
    int used_ = 0;              // places in use
    bool inputsDiffer_ = true;  // the device holds other inputs than the host
};

} // namespace kvscope
