// The ids that the rooms of the engine hand to each other: calls that swap two of them do not compile. Where a token
// lies in the blocks of its sequence.
#include "core/kv/kv_cache.h"
#include "core/select/selector.h"
#include "core/session/denoise_engine.h"
#include "core/session/row_engine.h"

#include <gtest/gtest.h>
#include <numeric>
#include <stop_token>
#include <type_traits>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

template <auto Function, class... Arguments>
constexpr bool kTakes = std::is_invocable_v<decltype(Function), Arguments...>;

static_assert(kTakes<&KvCache::head, KvCache&, RowId, LayerId, KvHeadId>);
static_assert(!kTakes<&KvCache::head, KvCache&, LayerId, RowId, KvHeadId>);
static_assert(!kTakes<&KvCache::head, KvCache&, RowId, KvHeadId, LayerId>);
static_assert(!kTakes<&KvCache::head, KvCache&, int, int, int>);

using Requests = std::vector<PrefetchRequest>&;
static_assert(kTakes<&Selector::promptDone, Selector&, LayerId, RowId, int, Requests>);
static_assert(!kTakes<&Selector::promptDone, Selector&, RowId, LayerId, int, Requests>);
static_assert(!kTakes<&Selector::storedBytes, Selector&, int, LayerId>);

static_assert(kTakes<&DeviceBlockCache::rank, DeviceBlockCache&, BlockId, std::int32_t>);
static_assert(!kTakes<&DeviceBlockCache::rank, DeviceBlockCache&, std::int32_t, BlockId>);

using Stop = const std::stop_token&;
static_assert(kTakes<&RowEngine::readLayers, RowEngine&, RowId, LayerId, int, Stop>);
static_assert(!kTakes<&RowEngine::readLayers, RowEngine&, LayerId, RowId, int, Stop>);
static_assert(!kTakes<&RowEngine::readLayers, RowEngine&, RowId, int, LayerId, Stop>);
static_assert(!std::is_constructible_v<RowToken, int, int, int>, "a row's number is not its id");

using Numbers = std::span<const float>;
static_assert(!kTakes<&DenoiseObserver::attended, DenoiseObserver&, RowId, LayerId, Numbers, Numbers>);

TEST(BlockLayout, SaysWhereTheTokenAtAPositionLies) {
    const BlockLayout layout{16, 4, false, -1};
    EXPECT_EQ(layout.blockOf(0), BlockId{0});
    EXPECT_EQ(layout.blockOf(15), BlockId{0});
    EXPECT_EQ(layout.blockOf(16), BlockId{1});
    EXPECT_EQ(layout.rowOf(15), 15);
    EXPECT_EQ(layout.rowOf(16), 0);
}

TEST(BlockLayout, AKeyThatIsWrittenIsReadAndNoOtherIsTouched) {
    const BlockLayout layout{3, 4, true, -1};
    std::vector<float> block(layout.floats()), read(4);
    std::iota(block.begin(), block.end(), 0.f);
    const std::vector<float> before = block, key{100, 101, 102, 103};
    layout.writeKey(block.data(), 1, key.data());
    layout.readKey(block.data(), 1, read.data());
    EXPECT_EQ(read, key);
    int changed = 0;
    for (std::size_t i = 0; i < block.size(); ++i) changed += block[i] != before[i] ? 1 : 0;
    EXPECT_EQ(changed, 4);
    layout.readKey(block.data(), 2, read.data());
    EXPECT_EQ(read, (std::vector<float>{2, 5, 8, 11})) << "channels lie a block's tokens apart";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
