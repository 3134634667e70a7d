// One pool of slots for everything on a device: the kernels' code, on threads of the host and on a GPU, against
// serve::SlotPool, with the blocks that it moves.
#include "core/serve/random_draws.h"
#include "core/serve/slot_pool.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/transfer/slot_pool_steps.h"
#include "tests/kernels/cuda/device.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using cuda::PoolArgs;
using cuda::PoolRow;
using cuda::PoolSteps;
using serve::Draws;
using serve::PooledBlock;

/// What the threads of a team share.
struct TeamMemory {
    explicit TeamMemory(int threads) : barrier(threads), values(std::size_t(threads)) {}
    std::barrier<> barrier;
    std::vector<int> values;
    std::int64_t number = 0;
};

/// A thread of the host as one of a team of PoolSteps.
class HostTeam {
public:
    HostTeam(int number, int of, TeamMemory& memory)
        : thread(number), threads(of), shared(&memory.number), memory_(memory) {}
    void sync() { memory_.barrier.arrive_and_wait(); }
    int prefix(int value, int& all) {
        memory_.values[std::size_t(thread)] = value;
        sync();
        int before = 0;
        all = 0;
        for (int t = 0; t < threads; ++t) {
            before += t < thread ? memory_.values[std::size_t(t)] : 0;
            all += memory_.values[std::size_t(t)];
        }
        sync();
        return before;
    }
    template <class T> T add(T* at, T value) { return std::atomic_ref<T>(*at).fetch_add(value); }

    const int thread, threads;
    std::int64_t* const shared;

private:
    TeamMemory& memory_;
};

/// Runs the pool's work: on so many threads of the host, or with 0 on the GPU.
class Runner {
public:
    explicit Runner(int threads) : threads_(threads) {}

    void clear(const cuda::PoolState& state) const {
        if (threads_ == 0) return onGpu([&](const cuda::Launch& how) { cuda::clearPool(how, state); });
        onHost([&](HostTeam& team) { PoolSteps<HostTeam>(state, team).clear(); });
    }
    void lookUp(const PoolArgs& args) const {
        if (threads_ == 0) return onGpu([&](const cuda::Launch& how) { cuda::lookUpInPool(how, args); });
        onHost([&](HostTeam& team) { PoolSteps<HostTeam>(args.state, team).lookUp(args); });
    }
    void release(const cuda::PoolState& state, std::int32_t* slotOf, int blocks) const {
        if (threads_ == 0)
            return onGpu([&](const cuda::Launch& how) { cuda::releaseFromPool(how, state, slotOf, blocks); });
        onHost([&](HostTeam& team) { PoolSteps<HostTeam>(state, team).release(slotOf, blocks); });
    }
    /// Memory that both the host and the runner reach, zeroed.
    template <class T> T* take(std::size_t count) {
        const std::size_t bytes = std::max<std::size_t>(16, count * sizeof(T));
        if (threads_ == 0) return pinned_.emplace_back(bytes, "a test's memory").template as<T>();
        void* const memory = ::operator new(bytes, std::align_val_t(16));
        std::memset(memory, 0, bytes);
        taken_.push_back(memory);
        return static_cast<T*>(memory);
    }
    ~Runner() {
        for (void* memory : taken_) ::operator delete(memory, std::align_val_t(16));
    }

private:
    template <class Work> static void onGpu(Work&& work) {
        work(cuda::Launch{});
        cuda::check(cudaDeviceSynchronize(), "running the pool");
    }
    template <class Work> void onHost(Work&& work) const {
        TeamMemory memory(threads_);
        std::vector<std::thread> all;
        for (int t = 0; t < threads_; ++t)
            all.emplace_back([&, t] {
                HostTeam team(t, threads_, memory);
                work(team);
            });
        for (std::thread& thread : all) thread.join();
    }

    const int threads_;
    std::vector<void*> taken_;
    std::vector<cuda::PinnedMemory> pinned_; // for the GPU, zeroed
};

/// Rows that come and go and select at random, with a pool on a Runner beside a SlotPool.
class World {
public:
    static constexpr int kRows = 5, kLayers = 3, kHeads = 2, kDim = 8, kBlock = 4, kCapacity = 6, kBlocks = 40;
    static constexpr int kMostSlots = 160, kItems = kRows * kHeads;

    World(Runner& runner, std::uint64_t seed) : run_(runner), draws_(seed) {
        args_.shape = {kHeads, kHeads, kDim, kBlock, 0};
        args_.capacity = kCapacity;
        cuda::PoolState& s = args_.state;
        s.slots = kMostSlots + kItems;
        s.entries = 256; // the least that is possible, so that the log is cleaned often
        s.log = run_.take<std::int32_t>(std::size_t(s.entries));
        s.lastAt = run_.take<std::int64_t>(std::size_t(s.slots));
        s.owner = run_.take<std::int32_t*>(std::size_t(s.slots));
        s.free = run_.take<std::int32_t>(std::size_t(s.slots));
        s.filled = run_.take<std::int32_t>(kItems);
        s.counts = run_.take<cuda::PoolCounts>(1);
        s.blocks = run_.take<__nv_bfloat16>(std::size_t(s.slots + kLayers * kItems) * kElements);
        inputs_ = run_.take<cuda::PoolInputs>(1);
        table_ = run_.take<PoolRow>(kRows);
        position_ = run_.take<std::int32_t>(kRows);
        listBlock_ = run_.take<std::int32_t>(kItems * kCapacity),
        listSlot_ = run_.take<std::int32_t>(kItems * kCapacity);
        listCount_ = run_.take<std::int32_t>(kItems);
        map_ = run_.take<std::int32_t>(kLayers * kItems * kBlocks);
        std::fill_n(map_, kLayers * kItems * kBlocks, -1);
        key_ = run_.take<__nv_bfloat16>(kItems * kDim), value_ = run_.take<__nv_bfloat16>(kItems * kDim);
        storeFirst_ = run_.take<std::int64_t>(kItems);
        loads_ = run_.take<cuda::BlockMove>(kItems * kCapacity), back_ = run_.take<cuda::BlockMove>(kItems);
        counts_ = run_.take<std::uint32_t>(2);
        heads_ = run_.take<cuda::SelectionHead>(kItems);
        recorded_ = run_.take<PackedBlock>(kItems * kCapacity);
        store_.resize(std::size_t(kLayers * kItems * kBlocks) * kElements);
        args_.inputs = inputs_, args_.rows = table_;
        run_.clear(s);
    }

    void run(int steps) {
        for (step_ = 0; step_ < steps && !::testing::Test::HasFailure(); ++step_) {
            comeAndGo();
            std::vector<int> rows;
            for (int row = 0; row < kRows; ++row)
                if (rows_[std::size_t(row)].here && draws_.uniform() < 0.8) rows.push_back(row);
            draws_.shuffle(rows);
            if (rows.empty()) continue;
            // No less than a layer selects.
            slots_ = int(rows.size()) * kHeads * kCapacity + int(draws_.below(std::uint64_t(kMostSlots - 60 + 1)));
            for (int layer = 0; layer < kLayers; ++layer) stepOf(layer, rows);
            for (const int row : rows) ++rows_[std::size_t(row)].position;
        }
    }

    std::int64_t hits = 0, misses = 0, filled = 0, left = 0;

private:
    static constexpr std::size_t kElements = cuda::blockElements(kBlock, kDim);
    struct Row {
        bool here = false;
        int position = 0;
        std::uint32_t text = 0; // what its keys and values are made of
        std::vector<std::vector<std::int32_t>> chosen = std::vector<std::vector<std::int32_t>>(kLayers * kHeads);
    };

    std::uint16_t number(const Row& row, int layer, int head, int token, int channel, bool value) const {
        std::uint32_t x =
            row.text * 2654435761u + std::uint32_t(((layer * kHeads + head) * 256 + token) * 16 + channel);
        x = (x ^ x >> 15) * 0x2C1B3C6Du + (value ? 77 : 0);
        return std::uint16_t(x >> 13);
    }
    static std::size_t placeOf(int token, int channel, bool value) {
        const int in = token % kBlock;
        return std::size_t(value ? kBlock * kDim + channel * kBlock + in : in * kDim + channel);
    }
    static void put(__nv_bfloat16* to, std::uint16_t bits) { std::memcpy(static_cast<void*>(to), &bits, sizeof bits); }
    __nv_bfloat16* storeOf(int row, int layer, int head, int block) {
        return store_.data() + std::size_t(((layer * kRows + row) * kHeads + head) * kBlocks + block) * kElements;
    }
    int newestOf(int row, int layer) const { return args_.state.slots + (row * kLayers + layer) * kHeads; }
    std::int32_t* mapOf(int row, int layer) { return map_ + (layer * kRows + row) * kHeads * kBlocks; }
    void write(__nv_bfloat16* block, const Row& row, int layer, int head, int first, int end) const {
        for (int token = first; token < end; ++token)
            for (int c = 0; c < kDim; ++c)
                for (const bool value : {false, true})
                    put(block + placeOf(token, c, value), number(row, layer, head, token, c, value));
    }

    void comeAndGo() {
        for (int r = 0; r < kRows; ++r) {
            Row& row = rows_[std::size_t(r)];
            const bool full = row.here && row.position >= kBlocks * kBlock - 1;
            if (row.here && (full || draws_.uniform() < 0.06)) { // the request ends, or is paused
                for (int layer = 0; layer < kLayers; ++layer)
                    run_.release(args_.state, mapOf(r, layer), kHeads * kBlocks);
                pool_.release(r), ++left;
                row.here = !full && draws_.uniform() < 0.5;
            } else if (!row.here && draws_.uniform() < 0.3) {
                row = {};
                row.here = true, row.position = int(draws_.below(100)),
                row.text = std::uint32_t(draws_.below(1u << 30));
                const int tail = row.position / kBlock;
                for (int layer = 0; layer < kLayers; ++layer)
                    for (int head = 0; head < kHeads; ++head) {
                        for (int b = 0; b < tail; ++b)
                            write(storeOf(r, layer, head, b), row, layer, head, b * kBlock, (b + 1) * kBlock);
                        write(args_.state.blocks + std::size_t(newestOf(r, layer) + head) * kElements, row, layer, head,
                              tail * kBlock, row.position);
                    }
            }
        }
    }

    /// The blocks that a head selects: those of the step before but for some, and the newest.
    std::vector<std::int32_t> select(Row& row, int layer, int head) {
        std::vector<std::int32_t>& chosen = row.chosen[std::size_t(layer * kHeads + head)];
        const std::int32_t current = row.position / kBlock;
        const auto wanted = std::size_t(std::min<std::int64_t>(current, std::int64_t(draws_.below(kCapacity))));
        std::erase_if(chosen, [&](std::int32_t) { return draws_.uniform() < 0.2; });
        std::erase(chosen, current);
        if (chosen.size() > wanted) chosen.resize(wanted);
        while (chosen.size() < wanted) {
            const auto block = std::int32_t(draws_.below(std::uint64_t(current)));
            if (std::find(chosen.begin(), chosen.end(), block) == chosen.end()) chosen.push_back(block);
        }
        std::vector<std::int32_t> list = chosen;
        list.push_back(current);
        std::sort(list.begin(), list.end());
        return list;
    }

    void fillRow(int at, int r, int layer) {
        Row& row = rows_[std::size_t(r)];
        position_[at] = row.position;
        PoolRow& entry = table_[at] = {};
        entry.position = position_ + at, entry.capacity = kCapacity;
        entry.listBlock = listBlock_ + at * kHeads * kCapacity, entry.listSlot = listSlot_ + at * kHeads * kCapacity;
        entry.listCount = listCount_ + at * kHeads;
        entry.slotOf = mapOf(r, layer), entry.blocks = kBlocks, entry.newest = newestOf(r, layer);
        entry.slotFirst = 1000;
        entry.storeFirst = storeFirst_ + at * kHeads;
        entry.newKey = key_ + at * kHeads * kDim, entry.newValue = value_ + at * kHeads * kDim;
        entry.moves = {loads_, back_, counts_, 3};
        entry.recordHead = heads_ + at * kHeads, entry.recordBlocks = recorded_ + at * kHeads * kCapacity;
        for (int head = 0; head < kHeads; ++head) {
            const int item = at * kHeads + head;
            storeFirst_[item] = 3 * (((layer * kRows + r) * kHeads + head) * kBlocks);
            const std::vector<std::int32_t> list = select(row, layer, head);
            listCount_[item] = int(list.size());
            heads_[item] = {int(list.size()), -1, int(list.size()), 0, 0};
            for (std::size_t i = 0; i < list.size(); ++i) {
                listBlock_[std::size_t(item * kCapacity) + i] = list[i];
                recorded_[std::size_t(item * kCapacity) + i] = PackedBlock(list[i], Origin::QueryAware, true);
            }
            for (int c = 0; c < kDim; ++c) {
                put(key_ + item * kDim + c, number(row, layer, head, row.position, c, false));
                put(value_ + item * kDim + c, number(row, layer, head, row.position, c, true));
            }
        }
    }

    void stepOf(int layer, const std::vector<int>& rows) {
        SCOPED_TRACE(fmt::format("step {}, layer {}, {} rows, {} slots", step_, layer, rows.size(), slots_));
        counts_[0] = counts_[1] = 0;
        for (std::size_t at = 0; at < rows.size(); ++at) fillRow(int(at), rows[at], layer);
        *inputs_ = {std::int32_t(rows.size()), slots_};
        run_.lookUp(args_);
        ASSERT_EQ(args_.state.counts->failed, 0u);
        compareMisses(layer, rows);
        move();
        compareContents(layer, rows);
        for (const int row : rows)
            if ((rows_[std::size_t(row)].position + 1) % kBlock == 0)
                for (int head = 0; head < kHeads; ++head)
                    pool_.keep({row, layer, head, rows_[std::size_t(row)].position / kBlock}), ++filled;
        EXPECT_EQ(args_.state.counts->used, pool_.used());
        EXPECT_EQ(args_.state.counts->free, args_.state.slots - pool_.used());
    }

    void compareMisses(int layer, const std::vector<int>& rows) {
        std::vector<PooledBlock> wanted, missed;
        for (std::size_t at = 0; at < rows.size(); ++at)
            for (int head = 0; head < kHeads; ++head) {
                const int item = int(at) * kHeads + head, current = rows_[std::size_t(rows[at])].position / kBlock;
                int headMisses = 0;
                for (int i = 0; i < listCount_[item]; ++i) {
                    const PooledBlock block{rows[at], layer, head, listBlock_[item * kCapacity + i]};
                    if (block.block != current) wanted.push_back(block);
                    const bool hit = recorded_[item * kCapacity + i].hit();
                    if (!hit) missed.push_back(block), ++headMisses;
                }
                EXPECT_EQ(heads_[item].misses, headMisses);
                EXPECT_EQ(heads_[item].hits, listCount_[item] - headMisses);
            }
        const auto want = pool_.select(wanted, slots_);
        EXPECT_TRUE(std::equal(want.begin(), want.end(), missed.begin(), missed.end()))
            << want.size() << " misses wanted, there are " << missed.size();
        EXPECT_EQ(counts_[0], want.size());
        misses += std::int64_t(want.size()), hits += std::int64_t(wanted.size() - want.size());
    }

    /// Moves what is listed, as a gather does.
    void move() {
        for (std::uint32_t i = 0; i < counts_[0]; ++i)
            std::copy_n(store_.data() + std::size_t(loads_[i].store / 3) * kElements, kElements,
                        args_.state.blocks + std::size_t(loads_[i].slot - 1000) * kElements);
        for (std::uint32_t i = 0; i < counts_[1]; ++i)
            std::copy_n(args_.state.blocks + std::size_t(back_[i].slot - 1000) * kElements, kElements,
                        store_.data() + std::size_t(back_[i].store / 3) * kElements);
    }

    /// Every selected block is where its list says, and blocks that are full are on the host and in the pool too.
    void compareContents(int layer, const std::vector<int>& rows) {
        for (std::size_t at = 0; at < rows.size(); ++at)
            for (int head = 0; head < kHeads; ++head) {
                const Row& row = rows_[std::size_t(rows[at])];
                const int item = int(at) * kHeads + head, current = row.position / kBlock;
                for (int i = 0; i < listCount_[item]; ++i) {
                    const int block = listBlock_[item * kCapacity + i], slot = listSlot_[item * kCapacity + i];
                    const int end = block == current ? row.position + 1 : (block + 1) * kBlock;
                    expectBlock(args_.state.blocks + std::size_t(slot) * kElements, row, layer, head, block, end);
                }
                if ((row.position + 1) % kBlock != 0) continue;
                const int slot = mapOf(rows[at], layer)[head * kBlocks + current];
                ASSERT_GE(slot, 0);
                const int end = row.position + 1;
                expectBlock(args_.state.blocks + std::size_t(slot) * kElements, row, layer, head, current, end);
                expectBlock(storeOf(rows[at], layer, head, current), row, layer, head, current, end);
            }
    }
    void expectBlock(const __nv_bfloat16* at, const Row& row, int layer, int head, int block, int end) const {
        std::vector<__nv_bfloat16> want(at, at + kElements);
        write(want.data(), row, layer, head, block * kBlock, end);
        EXPECT_EQ(std::memcmp(static_cast<const void*>(want.data()), at, kElements * sizeof *at), 0)
            << "head " << head << ", block " << block;
    }

    Runner& run_;
    Draws draws_;
    PoolArgs args_;
    cuda::PoolInputs* inputs_ = nullptr;
    PoolRow* table_ = nullptr;
    std::int32_t *position_ = nullptr, *listBlock_ = nullptr, *listSlot_ = nullptr, *listCount_ = nullptr;
    std::int32_t* map_ = nullptr; // [layer, row, head, block]
    __nv_bfloat16 *key_ = nullptr, *value_ = nullptr;
    std::int64_t* storeFirst_ = nullptr;
    cuda::BlockMove *loads_ = nullptr, *back_ = nullptr;
    std::uint32_t* counts_ = nullptr;
    cuda::SelectionHead* heads_ = nullptr;
    PackedBlock* recorded_ = nullptr;
    std::vector<__nv_bfloat16> store_;
    std::vector<Row> rows_ = std::vector<Row>(kRows);
    serve::SlotPool pool_;
    int step_ = 0, slots_ = 0;
};

void compareWithSlotPool(int threads, int steps, std::uint64_t seeds) {
    for (std::uint64_t seed = 1; seed <= seeds && !::testing::Test::HasFailure(); ++seed) {
        SCOPED_TRACE(fmt::format("{} threads, seed {}", threads, seed));
        Runner runner(threads);
        World world(runner, seed);
        world.run(steps);
        EXPECT_GE(world.hits, steps) << "the random selections did what they are for";
        EXPECT_GE(world.misses, steps);
        EXPECT_GE(world.filled, steps / 10);
        EXPECT_GE(world.left, steps / 20);
    }
}

TEST(DevicePool, OneThreadDoesWhatASlotPoolDoes) { compareWithSlotPool(1, 400, 3); }
TEST(DevicePool, SomeThreadsDoWhatASlotPoolDoes) {
    compareWithSlotPool(3, 12, 1); // a barrier takes long where there are fewer processors than threads
    compareWithSlotPool(8, 6, 1);
}

TEST(DevicePoolOnCuda, DoesWhatASlotPoolDoes) {
    KVSCOPE_NEEDS_GPU();
    compareWithSlotPool(0, 300, 3);
}

TEST(DevicePool, SaysThatAStepHasTooFewSlots) {
    Runner runner(1);
    cuda::PoolState state;
    state.slots = 2, state.entries = 16;
    state.log = runner.take<std::int32_t>(16), state.lastAt = runner.take<std::int64_t>(2);
    state.owner = runner.take<std::int32_t*>(2), state.free = runner.take<std::int32_t>(2);
    state.filled = runner.take<std::int32_t>(1), state.counts = runner.take<cuda::PoolCounts>(1);
    state.blocks = runner.take<__nv_bfloat16>(3 * cuda::blockElements(4, 8));
    runner.clear(state);
    std::vector<std::int32_t> list{0, 1, 2, 3}, slots(4, -7), map(5, -1);
    std::int32_t count = 4, position = 16;
    const std::int64_t storeFirst = 0;
    std::vector<cuda::BlockMove> loads(4), back(1);
    std::uint32_t moves[2] = {};
    std::vector<__nv_bfloat16> token(8);
    PoolRow row;
    row.position = &position, row.capacity = 4, row.listBlock = list.data(), row.listCount = &count;
    row.listSlot = slots.data(), row.slotOf = map.data(), row.blocks = 5, row.newest = 2, row.storeFirst = &storeFirst;
    row.newKey = row.newValue = token.data(), row.moves = {loads.data(), back.data(), moves, 1};
    cuda::PoolInputs inputs{1, 2};
    PoolArgs args;
    args.shape = {1, 1, 8, 4, 0}, args.capacity = 4, args.state = state, args.inputs = &inputs, args.rows = &row;
    runner.lookUp(args);
    EXPECT_EQ(state.counts->failed, 1u);
    EXPECT_EQ(state.counts->used, 2);
    for (const std::int32_t slot : slots) EXPECT_TRUE(slot >= 0 && slot <= 2) << "what is attended exists";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
