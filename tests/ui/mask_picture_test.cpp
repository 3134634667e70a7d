// The mask's quick picture against a plain one, which looks at every cell of every pixel.
#include "ui/look/theme.h"
#include "ui/plots/mask_plottable.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using Steps = std::vector<std::map<int, MaskBits>>;
using Colouring = MaskPlottable::Colouring;
using Zoomed = MaskPlottable::Zoomed;

struct Look {
    Colouring colouring;
    bool hatch;
    Zoomed zoomed;
};

struct Window {
    QCPRange steps, blocks;
    QSize size;
    double scale;
};

Steps randomSteps(std::mt19937& random, int count, int blocks, int most) {
    Steps steps;
    steps.resize(std::size_t(count));
    for (auto& step : steps)
        for (unsigned k = 0; k < random() % unsigned(most); ++k)
            step[int(random() % unsigned(blocks))] =
                MaskBits((1u << random() % kMaskOrigins) | (random() % 3 ? kMaskHit : kMaskMiss));
    return steps;
}

/// Whole tiles sealed, the last one still growing, as they come while a run is read.
void fill(MaskPyramid& data, const Steps& steps) {
    for (std::size_t first = 0; first < steps.size(); first += kTileSteps) {
        const std::size_t last = std::min(first + kTileSteps, steps.size());
        MaskChunk chunk;
        for (std::size_t step = first; step < last; ++step) {
            for (const auto& [block, bits] : steps[step]) chunk.cells.push_back({block, bits});
            chunk.endStep();
        }
        auto tile = std::make_shared<MaskTile>(chunk);
        if (tile->steps() == kTileSteps) tile->seal();
        data.place(int(first), std::move(tile));
    }
}

QRgb mixed(QColor hit, QColor miss, std::uint64_t hits, std::uint64_t misses) {
    const auto part = [&](int a, int b) {
        return int((std::uint64_t(a) * hits + std::uint64_t(b) * misses) / (hits + misses));
    };
    return qRgb(part(hit.red(), miss.red()), part(hit.green(), miss.green()), part(hit.blue(), miss.blue()));
}

QImage plainPicture(const Steps& steps, int blocks, const Look& look, const Window& window) {
    const Theme& theme = Theme::current();
    const int width = window.size.width(), height = window.size.height();
    const double perBlock = height / window.blocks.size(), perStep = width / window.steps.size();
    const bool gapX = perStep >= 7 * window.scale, gapY = perBlock >= 7 * window.scale;
    const int gap = std::max(1, int(std::lround(window.scale)));
    const int period = std::max(3, int(std::lround(4 * window.scale)));
    const bool hatch =
        look.hatch && look.colouring == Colouring::Origin && std::min(perBlock, perStep) >= 2 * window.scale;
    const bool shares = look.zoomed == Zoomed::Share && (perBlock < 1 || perStep < 1);
    // A block's lines, from the lower edge of its cell to the upper; at least one.
    std::vector<std::vector<int>> blocksOf;
    blocksOf.resize(std::size_t(height));
    for (int block = 0; block < blocks; ++block) {
        const double high = (window.blocks.upper - (block + 0.5)) * perBlock;
        const double low = (window.blocks.upper - (block - 0.5)) * perBlock;
        if (low <= 0 || high >= height) continue;
        const int top = int(std::floor(high + 1e-6));
        const int bottom = std::max(int(std::floor(low + 1e-6)), top + 1);
        for (int y = std::max(top + (gapY ? gap : 0), 0); y < std::min(bottom, height); ++y)
            blocksOf[std::size_t(y)].push_back(block);
    }
    QImage image(window.size, QImage::Format_ARGB32_Premultiplied);
    image.fill(Qt::transparent);
    const auto columns = stepColumns(window.steps.lower, window.steps.upper, width, int(steps.size()));
    for (int x = 0; x < width; ++x) {
        const auto [first, last] = columns[std::size_t(x)];
        if (first >= last) continue;
        if (gapX && x < int(std::ceil((first - 0.5 - window.steps.lower) * perStep - 1e-6)) + gap) continue;
        struct Cells {
            MaskBits bits = 0;
            std::uint64_t hits = 0, misses = 0;
        };
        std::vector<Cells> ofBlock;
        ofBlock.resize(std::size_t(blocks));
        for (int step = first; step < last; ++step)
            for (const auto& [block, bits] : steps[std::size_t(step)]) {
                Cells& cells = ofBlock[std::size_t(block)];
                cells.bits |= bits;
                ((bits & kMaskMiss) ? cells.misses : cells.hits) += 1;
            }
        for (int y = 0; y < height; ++y) {
            MaskBits all = 0;
            std::uint64_t hits = 0, misses = 0;
            const auto& here = blocksOf[std::size_t(y)];
            for (const int block : here) {
                all |= ofBlock[std::size_t(block)].bits;
                hits += ofBlock[std::size_t(block)].hits;
                misses += ofBlock[std::size_t(block)].misses;
            }
            if (!all) continue;
            const bool residency = look.colouring == Colouring::Residency;
            const QRgb origin = theme.origin[std::size_t(MaskPlottable::shownOrigin(all))].rgb();
            QRgb pixel = residency ? (misses ? theme.miss : theme.hit).rgb() : origin;
            if (shares) {
                const double cells = double(last - first) * double(here.size());
                const QRgb full = residency ? mixed(theme.hit, theme.miss, hits, misses) : origin;
                pixel = qPremultiply(qRgba(qRed(full), qGreen(full), qBlue(full),
                                           int(std::lround(255 * (0.12 + 0.88 * double(hits + misses) / cells)))));
            } else if (hatch && misses && (x + y) % period < gap) {
                pixel = MaskPlottable::hatchColour(theme).rgb();
            }
            image.setPixel(x, y, pixel);
        }
    }
    return image;
}

Window randomWindow(std::mt19937& random, int steps, int blocks) {
    const auto part = [&](int count) { // from a few cells to more than there are
        const double size =
            std::exp(std::uniform_real_distribution<double>(std::log(3), std::log(1.2 * count))(random));
        const double lower = std::uniform_real_distribution<double>(-0.2 * size, count - 0.8 * size)(random);
        return QCPRange(lower - 0.5, lower - 0.5 + size);
    };
    const double scale = random() % 3 == 0 ? 2 : 1;
    return {part(steps), part(blocks), {40 + int(random() % 160), 30 + int(random() % 120)}, scale};
}

class MaskPicture : public ::testing::TestWithParam<Look> {};

TEST_P(MaskPicture, IsThePlainOnePixelByPixel) {
    std::mt19937 random(21);
    for (const auto& [count, blocks, most] : {std::tuple{9'000, 600, 24}, std::tuple{4'500, 50, 40}}) {
        const Steps steps = randomSteps(random, count, blocks, most);
        MaskPyramid data;
        fill(data, steps);
        QCustomPlot plot;
        auto* mask = new MaskPlottable(plot.xAxis, plot.yAxis, data);
        mask->setColouring(GetParam().colouring, GetParam().hatch);
        mask->setZoomed(GetParam().zoomed);
        for (int trial = 0; trial < 40; ++trial) {
            const Window window = randomWindow(random, count, data.blocks());
            const auto text = [&] {
                return testing::Message()
                       << "trial " << trial << ": steps " << window.steps.lower << " to " << window.steps.upper
                       << ", blocks " << window.blocks.lower << " to " << window.blocks.upper << ", "
                       << window.size.width() << " x " << window.size.height() << " at " << window.scale;
            };
            const QImage found = mask->render(window.steps, window.blocks, window.size, window.scale);
            const QImage expected = plainPicture(steps, data.blocks(), GetParam(), window);
            for (int y = 0; y < window.size.height(); ++y)
                for (int x = 0; x < window.size.width(); ++x)
                    ASSERT_EQ(found.pixel(x, y), expected.pixel(x, y)) << text() << ", pixel " << x << ", " << y;
            // The same steps a few pixels on: most of the picture is taken from the one before.
            Window moved = window;
            moved.steps += window.steps.size() / window.size.width() * double(1 + random() % 20);
            ASSERT_TRUE(mask->render(moved.steps, moved.blocks, moved.size, moved.scale) ==
                        plainPicture(steps, data.blocks(), GetParam(), moved))
                << text() << ", moved";
        }
    }
}

/// A grid is seen as one only if no gap is missing: cells are rarely a whole number of pixels wide and high.
TEST(MaskPictureGaps, LieBeforeEveryCellWhereverItBegins) {
    constexpr int kSteps = 40, kBlocks = 20;
    Steps steps;
    steps.resize(kSteps);
    for (auto& step : steps)
        for (int block = 0; block < kBlocks; ++block) step[block] = MaskBits(1 << 2 | kMaskHit);
    MaskPyramid data;
    fill(data, steps);
    QCustomPlot plot;
    auto* mask = new MaskPlottable(plot.xAxis, plot.yAxis, data);
    mask->setColouring(Colouring::Origin, false);
    for (const double perStep : {7.1, 7.5, 8.5, 11.77, 23.4})
        for (const double perBlock : {7.1, 7.6, 13.21, 17.9})
            for (const double scale : {1.0, 2.0}) {
                if (std::min(perStep, perBlock) < 7 * scale) continue;
                SCOPED_TRACE(testing::Message() << perStep << " x " << perBlock << " pixels at " << scale);
                const QSize size(240, 120);
                const QCPRange across(4.3, 4.3 + size.width() / perStep), up(2.8, 2.8 + size.height() / perBlock);
                const QImage image = mask->render(across, up, size, scale);
                // How thick each gap between two cells is, along the line that has the fewest empty pixels.
                const auto gaps = [](int lines, int length, auto&& isEmpty) {
                    int fullest = 0, fewest = length + 1;
                    for (int line = 0; line < lines; ++line) {
                        int empty = 0;
                        for (int at = 0; at < length; ++at) empty += isEmpty(line, at) ? 1 : 0;
                        if (empty < fewest) fullest = line, fewest = empty;
                    }
                    std::vector<int> thick;
                    int run = 0;
                    bool begun = false;
                    for (int at = 0; at < length; ++at) {
                        if (isEmpty(fullest, at)) {
                            ++run;
                            continue;
                        }
                        if (begun && run > 0) thick.push_back(run);
                        begun = true;
                        run = 0;
                    }
                    return thick;
                };
                const auto isEmpty = [&](int x, int y) { return qAlpha(image.pixel(x, y)) == 0; };
                const std::vector<int> columns =
                    gaps(size.height(), size.width(), [&](int y, int x) { return isEmpty(x, y); });
                const std::vector<int> rows = gaps(size.width(), size.height(), isEmpty);
                // All borders between cells, but for those at the edges of the picture.
                EXPECT_GE(int(columns.size()), int(size.width() / perStep) - 1);
                EXPECT_GE(int(rows.size()), int(size.height() / perBlock) - 1);
                EXPECT_EQ(columns, std::vector<int>(columns.size(), int(scale)));
                EXPECT_EQ(rows, std::vector<int>(rows.size(), int(scale)));
            }
}

INSTANTIATE_TEST_SUITE_P(Looks, MaskPicture,
                         ::testing::Values(Look{Colouring::Origin, true, Zoomed::Any},
                                           Look{Colouring::Origin, false, Zoomed::Share},
                                           Look{Colouring::Residency, false, Zoomed::Any},
                                           Look{Colouring::Residency, false, Zoomed::Share}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
