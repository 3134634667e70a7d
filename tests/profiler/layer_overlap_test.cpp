// The overlap of adjacent layers is what the selections that a reader gives make of it.
#include "profiler/export/export.h"
#include "profiler/export/layer_overlap.h"
#include "profiler/read/open_trace.h"
#include "profiler/read/trace_reader.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>
#include <set>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class LayerOverlapTest : public testing::Test {
protected:
    std::string record(const synthetic::RunShape& shape, RecordLevel level = RecordLevel::Full) const {
        const std::string file = (folder / "run.kvtrace").string();
        std::filesystem::remove(file);
        synthetic::recordFile(file, shape, level);
        return file;
    }
    /// The same by sets, from the rows of a reader.
    static LayerPair expected(const TraceReader& reader, const synthetic::RunShape& shape, int layer) {
        LayerPair pair;
        double mass = 0, nextMass = 0;
        for (int sequence = 0; sequence < shape.sequences; ++sequence)
            for (int head = 0; head < shape.kvHeads; ++head)
                for (const SelectionRow& above : reader.selections(1, layer + 1, sequence, head)) {
                    const auto below = reader.selection(1, above.step, layer, sequence, head);
                    if (!below) continue;
                    std::set<int> ids;
                    for (const PackedBlock block : below->blocks) ids.insert(block.id());
                    ++pair.selections;
                    mass += below->mass, nextMass += above.mass;
                    for (const PackedBlock block : above.blocks) {
                        const bool forced = block.origin() == Origin::Sink || block.origin() == Origin::Window;
                        pair.selected += 1;
                        pair.shared += ids.contains(block.id()) ? 1 : 0;
                        pair.chosen += forced ? 0 : 1;
                        pair.sharedChosen += !forced && ids.contains(block.id()) ? 1 : 0;
                    }
                }
        pair.mass = mass / double(pair.selections);
        pair.nextMass = nextMass / double(pair.selections);
        return pair;
    }
    test::Folder folder;
};

TEST_F(LayerOverlapTest, CountsWhatTheLayerBelowHasToo) {
    const synthetic::RunShape shape{.layers = 4, .sequences = 2, .decodeSteps = 12, .oracle = true};
    const std::string file = record(shape);
    const TraceReader reader(file);
    OpenTrace trace = openTrace(file);
    const std::vector<LayerPair> pairs = readLayerOverlap(*trace.connection, std::nullopt);
    ASSERT_EQ(pairs.size(), 3u);
    for (int layer = 0; layer < 3; ++layer) {
        const LayerPair& pair = pairs[std::size_t(layer)];
        const LayerPair wanted = expected(reader, shape, layer);
        EXPECT_EQ(pair.layer, layer);
        EXPECT_EQ(pair.next, layer + 1);
        EXPECT_EQ(pair.selections, wanted.selections);
        EXPECT_EQ(pair.selected, wanted.selected);
        EXPECT_EQ(pair.shared, wanted.shared);
        EXPECT_EQ(pair.chosen, wanted.chosen);
        EXPECT_EQ(pair.sharedChosen, wanted.sharedChosen);
        EXPECT_GT(pair.chosen, 0);
        EXPECT_LT(pair.shared, pair.selected);
        EXPECT_GT(pair.shared, 0);
        ASSERT_TRUE(pair.mass && pair.nextMass);
        EXPECT_NEAR(*pair.mass, *wanted.mass, 1e-6);
        EXPECT_NEAR(*pair.nextMass, *wanted.nextMass, 1e-6);
    }
    EXPECT_TRUE(readLayerOverlap(*trace.connection, 2).empty());
}

TEST_F(LayerOverlapTest, LayersThatAttendToEverythingArePassedOver) {
    const std::string file = record({.layers = 3, .denseLayers = 1, .decodeSteps = 4});
    OpenTrace trace = openTrace(file);
    const std::vector<LayerPair> pairs = readLayerOverlap(*trace.connection, 1);
    ASSERT_EQ(pairs.size(), 1u);
    EXPECT_EQ(pairs[0].layer, 1);
    EXPECT_EQ(pairs[0].next, 2);
    EXPECT_FALSE(pairs[0].mass);
}

TEST_F(LayerOverlapTest, TheTableSaysWhereNothingIsKnown) {
    std::ostringstream csv, lines, none;
    const std::string file = record({.layers = 2, .decodeSteps = 4});
    EXPECT_EQ(exportTable(file, ExportTable::LayerOverlap, ExportFormat::Csv, csv).rows, 1);
    EXPECT_TRUE(csv.str().starts_with("run_id,layer,next_layer,selections,selected,shared,overlap,chosen,shared_chosen,"
                                      "chosen_overlap,mass,next_mass\n1,0,1,8,"))
        << csv.str();
    EXPECT_TRUE(csv.str().ends_with(",,\n")) << "no mass without the oracle";
    EXPECT_EQ(exportTable(file, ExportTable::LayerOverlap, ExportFormat::Jsonl, lines).rows, 1);
    EXPECT_TRUE(lines.str().ends_with("\"mass\":null,\"next_mass\":null}\n")) << lines.str();
    const ExportResult counters =
        exportTable(record({}, RecordLevel::Counters), ExportTable::LayerOverlap, ExportFormat::Csv, none);
    EXPECT_EQ(counters.rows, 0);
    EXPECT_NE(counters.note.find("no two layers"), std::string::npos);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
