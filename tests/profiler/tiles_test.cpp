// Tiles against brute force, whatever order they came in, and the cache against everything that may happen to a file.
#include "profiler/record/recorder.h"
#include "profiler/tiles/mask_pyramid.h"
#include "profiler/tiles/step_pyramid.h"
#include "profiler/tiles/tile_reader.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

CellStats bruteForce(const std::vector<float>& values, int rows, int row, int first, int last) {
    CellStats stats;
    for (int step = first; step < last; ++step)
        if (const float v = values[std::size_t(step) * std::size_t(rows) + std::size_t(row)]; !std::isnan(v))
            stats.add({v, v, double(v), 1});
    return stats;
}

std::vector<float> randomColumns(std::mt19937& random, int steps, int rows) {
    std::uniform_real_distribution<float> value(-3, 3);
    std::vector<float> columns(std::size_t(steps) * std::size_t(rows));
    for (float& v : columns) v = random() % 7 == 0 ? std::nanf("") : value(random);
    return columns;
}

void expectSame(const StepPyramid& pyramid, const std::vector<float>& values, std::mt19937& random, int trials) {
    const int rows = pyramid.rows(), steps = int(values.size()) / rows;
    ASSERT_EQ(pyramid.steps(), steps);
    std::vector<CellStats> all(std::size_t(rows), CellStats{});
    for (int trial = 0; trial < trials; ++trial) {
        const int a = int(random() % unsigned(steps)), b = int(random() % unsigned(steps + 1));
        const int first = std::min(a, b), last = std::max(a, b);
        pyramid.aggregate(first, last, all);
        for (int row = 0; row < rows; ++row) {
            const CellStats expected = bruteForce(values, rows, row, first, last);
            const CellStats& found = all[std::size_t(row)];
            ASSERT_EQ(found.count, expected.count) << first << ".." << last << " row " << row;
            ASSERT_EQ(pyramid.stats(row, first, last).count, expected.count);
            if (expected.count == 0) {
                ASSERT_TRUE(std::isnan(found.value(Aggregate::Mean)));
                continue;
            }
            ASSERT_EQ(found.min, expected.min);
            ASSERT_EQ(found.max, expected.max);
            ASSERT_NEAR(found.sum, expected.sum, 1e-12 * 3 * double(expected.count)); // order of summation in double
            ASSERT_EQ(pyramid.stats(row, first, last).max, expected.max);
        }
    }
}

TEST(StepPyramid, AgreesWithBruteForceOverRandomRangesHoweverItGrew) {
    std::mt19937 random(7);
    for (const int rows : {1, 2, 5}) {
        StepPyramid pyramid;
        pyramid.reset(rows);
        std::vector<float> values;
        while (pyramid.steps() < 9000) {
            const auto chunk = randomColumns(random, 1 + int(random() % 1500), rows);
            values.insert(values.end(), chunk.begin(), chunk.end());
            pyramid.append(chunk);
        }
        expectSame(pyramid, values, random, 60);
    }
}

TEST(StepPyramid, AgreesWithBruteForceWhenTilesComeInAnyOrder) {
    std::mt19937 random(8);
    const int steps = 3 * kTileSteps + 77, rows = 3;
    const auto values = randomColumns(random, steps, rows);
    StepPyramid pyramid;
    pyramid.reset(rows);
    pyramid.tiles().announce(steps);
    for (const int tile : {2, 0, 3, 1}) {
        EXPECT_FALSE(pyramid.tiles().complete());
        const int first = tile * kTileSteps, last = std::min(first + kTileSteps, steps);
        auto built = std::make_shared<HeatTile>(rows);
        built->append(std::span(values).subspan(std::size_t(first * rows), std::size_t((last - first) * rows)));
        EXPECT_FALSE(pyramid.tiles().knows(first));
        EXPECT_TRUE(std::isnan(pyramid.at(first, 0)));
        pyramid.tiles().place(first, HeatTile::load(built->save())); // through bytes and back
        EXPECT_TRUE(pyramid.tiles().knows(last - 1));
    }
    EXPECT_TRUE(pyramid.tiles().complete());
    expectSame(pyramid, values, random, 100);
}

TEST(StepPyramid, ShowsThePreviewOnlyWhereNoTileIsKnown) {
    StepPyramid pyramid;
    pyramid.reset(1);
    const int steps = 2 * kTileSteps, stride = 100;
    auto preview = std::make_shared<HeatTile>(1);
    preview->append(std::vector<float>(std::size_t((steps + stride - 1) / stride), 5.f));
    pyramid.tiles().announce(steps);
    pyramid.tiles().setPreview(preview, stride);
    EXPECT_EQ(pyramid.stats(0, 10, 11).max, 5);
    auto tile = std::make_shared<HeatTile>(1);
    tile->append(std::vector<float>(kTileSteps, 1.f));
    pyramid.tiles().place(kTileSteps, tile);
    EXPECT_EQ(pyramid.stats(0, 0, kTileSteps).max, 5);
    EXPECT_EQ(pyramid.stats(0, kTileSteps, steps).max, 1) << "exact where it was read";
    EXPECT_TRUE(pyramid.tiles().hasPreview());
    auto first = std::make_shared<HeatTile>(1);
    first->append(std::vector<float>(kTileSteps, 2.f));
    pyramid.tiles().place(0, first);
    EXPECT_FALSE(pyramid.tiles().hasPreview()) << "everything is known";
    EXPECT_EQ(pyramid.stats(0, 0, steps).max, 2);
}

TEST(StepPyramid, ClipsRangesBeyondTheEnds) {
    StepPyramid pyramid;
    pyramid.reset(1);
    EXPECT_EQ(pyramid.stats(0, -5, 10).count, 0);
    pyramid.append(std::vector<float>{1, 2, 3});
    EXPECT_EQ(pyramid.stats(0, -5, 10).count, 3);
    EXPECT_EQ(pyramid.stats(0, 3, 9).count, 0);
    EXPECT_EQ(pyramid.stats(1, 0, 3).count, 0) << "there is no such row";
}

using Steps = std::vector<std::map<int, MaskBits>>;

Steps randomSteps(std::mt19937& random, int count, int blocks, int most) {
    Steps steps;
    steps.resize(std::size_t(count));
    for (auto& step : steps)
        for (unsigned k = 0; k < random() % unsigned(most); ++k)
            step[int(random() % unsigned(blocks))] =
                MaskBits((1u << random() % 5) | (random() % 2 ? kMaskHit : kMaskMiss));
    return steps;
}

MaskChunk chunkOf(const Steps& steps, std::size_t first, std::size_t last) {
    MaskChunk chunk;
    for (std::size_t i = first; i < last; ++i) {
        for (const auto& [block, bits] : steps[i]) chunk.cells.push_back({block, bits});
        chunk.endStep();
    }
    return chunk;
}

void expectSame(const MaskPyramid& pyramid, const Steps& steps, int blocks, std::mt19937& random, int trials) {
    ASSERT_EQ(pyramid.steps(), int(steps.size()));
    for (int trial = 0; trial < trials; ++trial) {
        const int a = int(random() % steps.size()), b = int(random() % (steps.size() + 1));
        const int first = std::min(a, b), last = std::max(a, b);
        const auto size = std::size_t(pyramid.blocks());
        std::vector<MaskBits> expected(size), found(size, 0xff);
        std::vector<std::uint32_t> selected(size), missed(size), foundSelected(size), foundMissed(size);
        double all = 0, allMissed = 0;
        for (int step = first; step < last; ++step)
            for (const auto& [block, bits] : steps[std::size_t(step)]) {
                expected[std::size_t(block)] |= bits;
                ++selected[std::size_t(block)];
                missed[std::size_t(block)] += (bits & kMaskMiss) ? 1 : 0;
                all += 1;
                allMissed += (bits & kMaskMiss) ? 1 : 0;
            }
        pyramid.bits(first, last, found);
        ASSERT_EQ(found, expected) << first << ".." << last;
        ASSERT_EQ(pyramid.counts(first, last, {foundSelected, foundMissed}), last - first);
        ASSERT_EQ(foundSelected, selected);
        ASSERT_EQ(foundMissed, missed);
        std::vector<int> starts; // bands of random widths, some blocks at both ends left out
        for (int at = int(random() % 5); at < pyramid.blocks(); at += 1 + int(random() % 9)) starts.push_back(at);
        const MaskBands bands(starts);
        for (const bool counted : {false, true}) {
            MaskBandSums sums(bands, counted);
            pyramid.bands(0, 1, sums); // its memory is used again
            ASSERT_EQ(pyramid.bands(first, last, sums), last - first);
            for (int band = 0; band < bands.count(); ++band) {
                MaskBits any = 0;
                std::uint32_t cells = 0, missing = 0;
                for (auto block = std::size_t(starts[std::size_t(band)]);
                     block < std::size_t(starts[std::size_t(band) + 1]); ++block) {
                    any |= expected[block];
                    cells += selected[block];
                    missing += missed[block];
                }
                ASSERT_EQ(sums.bits(band), any) << first << ".." << last << " band " << band;
                if (!counted) continue;
                ASSERT_EQ(sums.selected(band), cells) << first << ".." << last << " band " << band;
                ASSERT_EQ(sums.missed(band), missing);
            }
        }
        const int block = int(random() % unsigned(blocks));
        if (std::size_t(block) < size) {
            const auto count = pyramid.count(block, first, last);
            ASSERT_EQ(std::uint32_t(count[0]), selected[std::size_t(block)]);
            ASSERT_EQ(std::uint32_t(count[1]), missed[std::size_t(block)]);
        }
        if (first < last) {
            ASSERT_DOUBLE_EQ(pyramid.perStep(first, last)[0], all / (last - first));
            ASSERT_DOUBLE_EQ(pyramid.perStep(first, last)[1], allMissed / (last - first));
        }
    }
}

TEST(MaskPyramid, AgreesWithBruteForceHoweverItGrew) {
    std::mt19937 random(11);
    const Steps steps = randomSteps(random, 5000, 60, 12);
    MaskPyramid pyramid;
    for (std::size_t at = 0; at < steps.size();) {
        const std::size_t last = std::min(steps.size(), at + 1 + random() % 900);
        pyramid.append(chunkOf(steps, at, last));
        at = last;
    }
    expectSame(pyramid, steps, 60, random, 150);
    for (int step = 0; step < 200; ++step)
        for (int block = 0; block < 60; ++block) {
            const auto& expected = steps[std::size_t(step)];
            const auto bits = pyramid.find(step, block);
            ASSERT_EQ(bits.has_value(), expected.contains(block));
            if (bits) {
                ASSERT_EQ(*bits, expected.at(block));
            }
        }
}

/// 40 blocks: all upper levels become dense rows; 3,000 blocks: the lower ones stay lists.
TEST(MaskPyramid, AgreesWithBruteForceWhenTilesAreSealedAndKeptAsBytes) {
    std::mt19937 random(12);
    for (const int blocks : {40, 3000}) {
        const Steps steps = randomSteps(random, kTileSteps + 500, blocks, 12);
        MaskPyramid pyramid;
        pyramid.announce(int(steps.size()));
        auto second = std::make_shared<MaskTile>(chunkOf(steps, kTileSteps, steps.size()));
        pyramid.place(kTileSteps, second);
        auto first = std::make_shared<MaskTile>(chunkOf(steps, 0, kTileSteps));
        first->seal();
        const auto bytes = first->save();
        EXPECT_LT(double(bytes.size()), 1.2 * double(first->bytes()) + 1024);
        const auto loaded = MaskTile::load(bytes);
        ASSERT_TRUE(loaded);
        pyramid.place(0, loaded);
        expectSame(pyramid, steps, blocks, random, 80);
    }
}

TEST(Tiles, RefuseBytesThatAreCutShortOrChanged) {
    std::mt19937 random(13);
    auto heat = std::make_shared<HeatTile>(2);
    heat->append(randomColumns(random, 70, 2));
    MaskTile mask(chunkOf(randomSteps(random, 70, 30, 8), 0, 70));
    mask.seal();
    const auto heatBytes = heat->save(), maskBytes = mask.save();
    for (std::size_t size = 0; size < heatBytes.size(); ++size)
        ASSERT_FALSE(HeatTile::load(std::span(heatBytes).first(size)));
    for (std::size_t size = 0; size < maskBytes.size(); ++size)
        ASSERT_FALSE(MaskTile::load(std::span(maskBytes).first(size)));
    for (int trial = 0; trial < 2000; ++trial) { // what still loads must be safe to read
        auto changed = maskBytes;
        changed[random() % changed.size()] ^= std::byte(1u << random() % 8);
        if (const auto tile = MaskTile::load(changed)) {
            std::vector<MaskBits> bits(std::size_t(tile->blocks()));
            if (bits.size() < (1u << 20)) tile->addBits(0, tile->steps(), bits);
        }
    }
}

class TileCacheTest : public ::testing::Test {
protected:
    TileCache::Place place(std::uint64_t limit = 1 << 20) const { return {(folder / "cache").string(), limit}; }
    static std::vector<std::byte> bytes(std::size_t size, int value) {
        return std::vector<std::byte>(size, std::byte(value));
    }
    test::Folder folder;
};

TEST_F(TileCacheTest, GivesBackWhatWasStoredUnderTheSameNameOnly) {
    const TileCache cache(place(), "stamp", "what");
    EXPECT_FALSE(cache.load(0));
    cache.store(0, bytes(1000, 7));
    ASSERT_TRUE(cache.load(0));
    EXPECT_EQ(*cache.load(0), bytes(1000, 7));
    EXPECT_FALSE(cache.load(1));
    EXPECT_FALSE(TileCache(place(), "another stamp", "what").load(0));
    EXPECT_FALSE(TileCache(place(), "stamp", "something else").load(0));
    EXPECT_TRUE(TileCache(place(), "stamp", "what").load(0));
}

TEST_F(TileCacheTest, TakesADamagedFileForNone) {
    const TileCache cache(place(), "stamp", "what");
    cache.store(3, bytes(300, 1));
    const fs::path file = fs::path(cache.folder()) / "3.tile";
    const auto size = fs::file_size(file);
    std::string whole(size, '\0');
    std::ifstream(file, std::ios::binary).read(whole.data(), std::streamsize(size));
    for (std::size_t at = 0; at < size; ++at) {
        std::string changed = whole;
        changed[at] = char(changed[at] ^ 0x20);
        std::ofstream(file, std::ios::binary) << changed;
        ASSERT_FALSE(cache.load(3)) << "byte " << at;
    }
    for (const std::size_t cut : {std::size_t(0), std::size_t(5), size / 2, size - 1}) {
        std::ofstream(file, std::ios::binary) << whole.substr(0, cut);
        ASSERT_FALSE(cache.load(3)) << "cut to " << cut;
    }
    std::ofstream(file, std::ios::binary) << whole << "more";
    EXPECT_FALSE(cache.load(3));
    std::ofstream(file, std::ios::binary) << whole;
    EXPECT_TRUE(cache.load(3));
}

TEST_F(TileCacheTest, KeepsWithinItsLimitByDroppingWhatWasUsedLongestAgo) {
    const auto limit = place(10'000);
    const TileCache first(limit, "stamp", "first"), second(limit, "stamp", "second"), third(limit, "stamp", "third");
    first.store(0, bytes(4000, 1));
    second.store(0, bytes(4000, 2));
    const auto hourAgo = fs::file_time_type::clock::now() - std::chrono::hours(1);
    fs::last_write_time(first.folder(), hourAgo);
    fs::last_write_time(second.folder(), hourAgo);
    EXPECT_TRUE(first.load(0)) << "used now, so the second is the older one";
    third.store(0, bytes(4000, 3));
    EXPECT_TRUE(first.load(0));
    EXPECT_FALSE(second.load(0));
    EXPECT_TRUE(third.load(0));
    third.store(1, bytes(11'000, 3));
    EXPECT_FALSE(third.load(1)) << "more than the limit";
}

TEST_F(TileCacheTest, IsNoCacheWhereThereIsNoFolder) {
    std::ofstream((folder / "cache").string()) << "a file where the folder should be";
    const TileCache cache(place(), "stamp", "what");
    cache.store(0, bytes(10, 1));
    EXPECT_FALSE(cache.load(0));
    const TileCache none({}, "stamp", "what");
    none.store(0, bytes(10, 1));
    EXPECT_FALSE(none.load(0));
    EXPECT_TRUE(traceStamp((folder / "no such trace").string()).empty());
}

/// Files of this process cannot grow beyond a limit, as on a disk that is full.
class NoRoom {
public:
    explicit NoRoom(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        getrlimit(RLIMIT_FSIZE, &before_);
        const rlimit now{bytes, before_.rlim_max};
        setrlimit(RLIMIT_FSIZE, &now);
    }
    ~NoRoom() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    NoRoom(const NoRoom&) = delete;
    NoRoom& operator=(const NoRoom&) = delete;

private:
    rlimit before_{};
    void (*handler_)(int);
};

TEST_F(TileCacheTest, LeavesNothingBehindWhenTheDiskIsFull) {
    const TileCache cache(place(), "stamp", "what");
    cache.store(0, bytes(1000, 1));
    {
        const NoRoom full(4096);
        cache.store(1, bytes(100'000, 2));
        cache.store(0, bytes(100'000, 3)); // would replace the one that is there
    }
    EXPECT_FALSE(cache.load(1));
    ASSERT_TRUE(cache.load(0));
    EXPECT_EQ(*cache.load(0), bytes(1000, 1)) << "the tile before stays whole";
    std::size_t files = 0;
    for (const auto& entry : fs::directory_iterator(cache.folder())) files += entry.is_regular_file();
    EXPECT_EQ(files, 1u) << "half a tile";
    cache.store(1, bytes(100'000, 2));
    EXPECT_TRUE(cache.load(1)) << "there is room again";
}

TEST_F(TileCacheTest, ReadsFromAFolderThatItCannotWriteTo) {
    if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
    const TileCache cache(place(), "stamp", "what");
    cache.store(0, bytes(1000, 1));
    fs::permissions(cache.folder(), fs::perms::owner_read | fs::perms::owner_exec);
    cache.store(1, bytes(1000, 2));
    EXPECT_TRUE(cache.load(0));
    EXPECT_FALSE(cache.load(1));
    fs::permissions(cache.folder(), fs::perms::owner_all);
}

TEST_F(TileCacheTest, TakesAForeignFileForNone) {
    const TileCache cache(place(), "stamp", "what"), other(place(), "stamp", "other");
    cache.store(0, bytes(5000, 1));
    other.store(0, bytes(5000, 2));
    fs::copy_file(fs::path(other.folder()) / "0.tile", fs::path(cache.folder()) / "0.tile",
                  fs::copy_options::overwrite_existing);
    EXPECT_FALSE(cache.load(0)) << "a whole tile, but of something else";
    fs::remove(fs::path(cache.folder()) / "0.tile");
    fs::create_directory(fs::path(cache.folder()) / "0.tile");
    EXPECT_FALSE(cache.load(0)) << "a folder";
    cache.store(0, bytes(5000, 1)); // cannot take its place
    EXPECT_FALSE(cache.load(0));
}

class TileReaderTest : public TileCacheTest {
protected:
    static constexpr int kSteps = kTileSteps + 60; // with the prefill: a whole tile and the beginning of another
    TileReaderTest() {
        place_ = place(64 << 20);
        shape.layers = 8;
        shape.kvHeads = 2;
        shape.decodeSteps = kSteps - 1;
        path = (folder / "a.kvtrace").string();
    }
    std::size_t kept() const {
        std::size_t files = 0;
        for (const auto& entry : fs::recursive_directory_iterator(folder / "cache"))
            files += entry.path().extension() == ".tile";
        return files;
    }
    /// File times have a grain; a stamp is given only after it.
    static void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(150)); }
    void recordIt() const {
        synthetic::recordFile(path, shape);
        settle();
        EXPECT_FALSE(traceStamp(path).empty());
    }
    void change(const char* sql) const {
        sqlite3* db = nullptr;
        ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
        EXPECT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
        sqlite3_close(db);
        settle();
    }
    static void expectTile(const HeatTile& tile, const StepMatrix& matrix, int first) {
        for (int step = 0; step < tile.steps(); ++step)
            for (int row = 0; row < tile.rows(); ++row) {
                const float a = tile.at(step, row), b = matrix.at(first + step, row);
                ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << first + step << ", " << row;
            }
    }
    synthetic::RunShape shape;
    std::string path;
    TileCache::Place place_;
    HeatRequest request{.runId = 1};
};

TEST_F(TileReaderTest, ReadsTheTraceOnceAndNeverAStaleTile) {
    recordIt();
    StepMatrix matrix = TraceReader(path).layerMatrix(1, Metric::Locality);
    ASSERT_EQ(matrix.steps, kSteps);
    for (int round = 0; round < 2; ++round) {
        const TraceReader reader(path);
        expectTile(*readTile(reader, request, 0, kTileSteps - 1, place_), matrix, 0);
        expectTile(*readTile(reader, request, kTileSteps, kSteps - 1, place_), matrix, kTileSteps);
        EXPECT_EQ(kept(), 1u) << "the short tile is not worth keeping";
    }
    // Proof that the second round came from the cache: what is in the file is shown.
    const TileCache cache(place_, traceStamp(path), "heat 2: run 1, metric 0, layers 0, sequence -1, head -1, times 1");
    HeatTile other(8);
    other.append(std::vector<float>(std::size_t(kTileSteps) * 8, 0.25f));
    cache.store(0, other.save());
    EXPECT_EQ(readTile(TraceReader(path), request, 0, kTileSteps - 1, place_)->at(100, 3), 0.25f);
    // Another writer: one value of one row.
    change("UPDATE layer_step SET kept = 0 WHERE id = ((1 << 25 | 100) << 10) | 3");
    EXPECT_EQ(readTile(TraceReader(path), request, 0, kTileSteps - 1, place_)->at(100, 3), 0.f);
    matrix = TraceReader(path).layerMatrix(1, Metric::Locality);
    expectTile(*readTile(TraceReader(path), request, 0, kTileSteps - 1, place_), matrix, 0);
}

TEST_F(TileReaderTest, RebuildsATileWhoseFileIsDamagedOrOfAnotherShape) {
    recordIt();
    const StepMatrix matrix = TraceReader(path).layerMatrix(1, Metric::Locality);
    readTile(TraceReader(path), request, 0, kTileSteps - 1, place_);
    for (const auto& entry : fs::recursive_directory_iterator(folder / "cache"))
        if (entry.path().extension() == ".tile") fs::resize_file(entry.path(), 1000);
    expectTile(*readTile(TraceReader(path), request, 0, kTileSteps - 1, place_), matrix, 0);
    const TileCache cache(place_, traceStamp(path), "heat 2: run 1, metric 0, layers 0, sequence -1, head -1, times 1");
    HeatTile shorter(8);
    shorter.append(std::vector<float>(80, 0.25f));
    cache.store(0, shorter.save());
    expectTile(*readTile(TraceReader(path), request, 0, kTileSteps - 1, place_), matrix, 0);
}

TEST_F(TileReaderTest, KeepsNothingOfARunThatGoesOn) {
    Recorder recorder(path, {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    for (int step = 0; step < kTileSteps + 1; ++step) {
        generator.recordNext(recorder);
        if (step % 256 == 0) recorder.flush();
    }
    recorder.flush();
    ASSERT_EQ(TraceReader(path).stepCount(1), kTileSteps + 1);
    settle();
    EXPECT_EQ(readTile(TraceReader(path), request, 0, kTileSteps - 1, place_)->steps(), kTileSteps);
    EXPECT_FALSE(fs::exists(folder / "cache"));
    recorder.endRun(RunStatus::Stopped, "");
}

TEST_F(TileReaderTest, ReadsHeadsMasksAndPreviews) {
    shape.sequences = 2;
    shape.decodeSteps = 300;
    synthetic::recordFile(path, shape);
    const TraceReader reader(path);
    const StepMatrix heads = reader.headMatrix(1, Metric::HitRate, 5);
    request = {.runId = 1, .metric = Metric::HitRate, .rows = HeatRequest::Rows::Heads, .layer = 5};
    const auto all = readTile(reader, request, 0, 300, {});
    ASSERT_EQ(all->rows(), 4);
    expectTile(*all, heads, 0);
    request.filter.sequence = 1;
    request.factor = 2;
    const auto one = readTile(reader, request, 64, 127, {});
    ASSERT_EQ(one->rows(), 2);
    EXPECT_EQ(one->steps(), 64);
    EXPECT_EQ(one->at(10, 1), 2 * heads.at(74, 3));
    const auto preview = readPreview(reader, request, 301, 50);
    ASSERT_EQ(preview->steps(), 7);
    EXPECT_EQ(preview->at(3, 0), 2 * heads.at(150, 2));

    const MaskRequest mask{1, 2, 1, 0};
    const auto tile = readTile(reader, mask, 0, 200, {});
    const auto sampled = readPreview(reader, mask, 201, 20);
    for (const SelectionRow& row : reader.selections(1, 2, 1, 0, 0, 200)) {
        const auto cells = tile->cells(row.step);
        ASSERT_EQ(cells.size(), row.blocks.size());
        for (std::size_t i = 0; i < cells.size(); ++i) {
            EXPECT_EQ(cells[i].block(), row.blocks[i].id());
            EXPECT_EQ(cells[i].bits(),
                      MaskBits((1 << int(row.blocks[i].origin())) | (row.blocks[i].hit() ? kMaskHit : kMaskMiss)));
        }
        if (row.step % 20 == 0) {
            EXPECT_TRUE(std::ranges::equal(sampled->cells(row.step / 20), cells));
        }
    }
}

TEST_F(TileReaderTest, KeepsTheNumbersOfWholeStepsUnlessSomethingIsLeftOut) {
    recordIt();
    const TraceReader reader(path);
    const auto rows = reader.steps(1);
    const auto stages = reader.breakdownSteps(1);
    ASSERT_EQ(rows.size(), std::size_t(kSteps));
    StepRequest transfers{.runId = 1, .numbers = StepNumbers::Transfers}, times{.runId = 1};
    for (int round = 0; round < 2; ++round) { // from the trace, then from the cache
        const auto tile = readTile(reader, transfers, 0, kTileSteps - 1, place_);
        const auto time = readTile(reader, times, 0, kTileSteps - 1, place_);
        EXPECT_EQ(kept(), 2u);
        for (int row = 0; row < tile->rows(); ++row)
            EXPECT_TRUE(std::isnan(tile->at(0, row))) << "the prefill is another phase";
        for (int step = 1; step < tile->steps(); ++step) {
            const StepRow& row = rows[std::size_t(step)];
            ASSERT_EQ(tile->at(step, int(TransferNumber::Misses)), float(row.misses));
            ASSERT_EQ(tile->at(step, int(TransferNumber::H2dBytes)), float(row.h2dBytes));
            ASSERT_EQ(tile->at(step, int(TransferNumber::ExposedNs)), float(row.exposedNs));
            if (row.kept >= 0 && row.selected > 0) {
                ASSERT_EQ(tile->at(step, int(TransferNumber::Locality)),
                          float(double(row.kept) / double(row.selected)));
            }
            const BreakdownStep& stage = stages[std::size_t(step)];
            ASSERT_EQ(time->at(step, int(Stage::Ffn)), float(stage.stageNs[std::size_t(Stage::Ffn)]));
            ASSERT_NEAR(time->at(step, kStageRows), double(stage.durationNs), 1e-6 * double(stage.durationNs));
        }
    }
    times.phase = Phase::Prefill;
    const auto prefill = readTile(reader, times, 0, kTileSteps - 1, place_);
    EXPECT_NEAR(prefill->at(0, kStageRows), double(stages[0].durationNs), 1e-6 * double(stages[0].durationNs));
    EXPECT_TRUE(std::isnan(prefill->at(1, kStageRows)));
    transfers.filter.steps = {{10, 12}};
    const auto filtered = readTile(reader, transfers, 0, kTileSteps - 1, place_);
    EXPECT_EQ(filtered->stats(int(TransferNumber::Misses), 0, kTileSteps).count, 3);
    EXPECT_EQ(kept(), 2u) << "a filter's tiles are not worth keeping";
    const auto preview = readPreview(reader, times = {.runId = 1}, kSteps, 100);
    ASSERT_EQ(preview->steps(), (kSteps + 99) / 100);
    EXPECT_EQ(preview->at(7, int(Stage::Ffn)), float(stages[700].stageNs[std::size_t(Stage::Ffn)]));
}

TEST_F(TileReaderTest, NeverShowsTilesOfATraceThatWasReplaced) {
    recordIt();
    readTile(TraceReader(path), request, 0, kTileSteps - 1, place_);
    const std::string other = (folder / "b.kvtrace").string();
    shape.seed += 1;
    synthetic::recordFile(other, shape);
    fs::last_write_time(other, fs::last_write_time(path)); // not even the time gives it away
    fs::rename(other, path);
    settle();
    const TraceReader reader(path);
    const StepMatrix matrix = reader.layerMatrix(1, Metric::Locality);
    expectTile(*readTile(reader, request, 0, kTileSteps - 1, place_), matrix, 0);
    expectTile(*readTile(reader, request, 0, kTileSteps - 1, place_), matrix, 0); // from the cache now
}

/// Several windows on one trace read, keep and drop the same tiles at once.
TEST_F(TileReaderTest, ServesSeveralWindowsOnOneTraceAtOnce) {
    recordIt();
    const StepMatrix matrix = TraceReader(path).layerMatrix(1, Metric::Locality);
    std::atomic<int> wrong{0}, read{0};
    const auto window = [&](unsigned seed) {
        std::mt19937 random(seed);
        const TraceReader reader(path);
        for (int round = 0; round < 12; ++round) {
            const auto tile = readTile(reader, request, 0, kTileSteps - 1, place_);
            for (int i = 0; i < 500; ++i) {
                const int step = int(random() % unsigned(kTileSteps)), row = int(random() % 8);
                const float a = tile->at(step, row), b = matrix.at(step, row);
                if (!(a == b || (std::isnan(a) && std::isnan(b)))) ++wrong;
            }
            ++read;
            if (round % 4 == 3) { // somebody empties the folder meanwhile
                std::error_code ignored;
                fs::remove_all(place_.folder, ignored);
            }
        }
    };
    {
        std::vector<std::jthread> windows;
        for (unsigned seed = 1; seed <= 3; ++seed) windows.emplace_back(window, seed);
    }
    EXPECT_EQ(read, 36);
    EXPECT_EQ(wrong, 0);
}

TEST_F(TileReaderTest, ReadsOneSequenceAmongMany) {
    shape.layers = 2;
    shape.kvHeads = 4;
    shape.sequences = 16;
    shape.decodeSteps = 700;
    recordIt();
    const TraceReader reader(path);
    const int steps = shape.decodeSteps + 1;
    const MaskRequest one{.runId = 1, .layer = 1, .sequence = 13, .kvHead = 2};
    const auto mask = readTile(reader, one, 0, steps - 1, place_);
    const auto rows = reader.selections(1, one.layer, one.sequence, one.kvHead);
    ASSERT_GT(rows.size(), std::size_t(400)) << "sequences end one after the other";
    for (const SelectionRow& row : rows) {
        const auto cells = mask->cells(row.step);
        ASSERT_EQ(cells.size(), row.blocks.size()) << row.step;
        for (std::size_t i = 0; i < cells.size(); ++i) {
            ASSERT_EQ(cells[i].block(), row.blocks[i].id());
            ASSERT_EQ((cells[i].bits() & kMaskMiss) == 0, row.blocks[i].hit());
        }
    }
    // All its heads, layer by layer, summed up from the heads themselves.
    request.metric = Metric::HitRate;
    request.filter.sequence = one.sequence;
    const auto heat = readTile(reader, request, 0, steps - 1, place_);
    ASSERT_EQ(heat->rows(), shape.layers);
    for (int layer = 0; layer < shape.layers; ++layer) {
        std::map<int, std::array<double, 2>> hitsOfAll;
        for (int head = 0; head < shape.kvHeads; ++head)
            for (const SelectionRow& row : reader.selections(1, layer, one.sequence, head)) {
                hitsOfAll[row.step][0] += double(row.hits);
                hitsOfAll[row.step][1] += double(row.hits + row.misses);
            }
        for (const auto& [step, sums] : hitsOfAll) {
            ASSERT_FLOAT_EQ(heat->at(step, layer), float(sums[0] / sums[1])) << step << ", " << layer;
        }
    }
    request.rows = HeatRequest::Rows::Heads;
    request.layer = 1;
    const auto heads = readTile(reader, request, 0, steps - 1, place_);
    ASSERT_EQ(heads->rows(), shape.kvHeads);
    for (const SelectionRow& row : rows)
        ASSERT_FLOAT_EQ(heads->at(row.step, one.kvHead), float(double(row.hits) / double(row.hits + row.misses)));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
