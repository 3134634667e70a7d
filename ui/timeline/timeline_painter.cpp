#include "ui/timeline/timeline_painter.h"

#include "ui/look/theme.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_curves.h"

#include <QFontMetricsF>
#include <QPainter>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvscope::ui {

namespace {
constexpr double kLeastLabel = 26;  // pixels: narrower spans have no text
constexpr int kTextsKept = 6000;    // laid-out labels
constexpr double kFaintest = 0.35;  // how strongly a single short span shows in its pixel
constexpr double kUnmatched = 0.78; // how far what a search did not find fades

} // namespace

QRgb TimelinePainter::colourOf(const TimelineScene& scene, int name, bool kept) const {
    const QRgb colour = (*colours_)[name];
    if (kept && (scene.data->matches.empty() || scene.data->isMatch(name))) return colour;
    return mixed(colour, theme_->plotBackground.rgb(), kUnmatched);
}

void TimelinePainter::paint(QPainter& painter, QSize size, const TimelineScene& scene, const Theme& theme,
                            const QFont& font, double ratio, bool vector) {
    theme_ = &theme;
    ratio_ = ratio;
    font_ = font;
    areas_ = TimelineAreas::of(size, scene.gutter);
    colours_ = &spanColours_.of(scene.data->table, scene.data->index.components(), theme);
    painter.fillRect(QRect({0, 0}, size), theme.plotBackground);
    painter.setFont(font_);
    // A narrow body has four ticks all the same, as long as their labels find room.
    const std::vector<TimeTick> ticks =
        timeTicks(scene.window, areas_.body.width(), std::clamp(areas_.body.width() / 4, 60, 110));
    drawBody(scene, ticks);
    painter.drawImage(areas_.body.topLeft(), body_);
    drawLabels(painter, scene, vector);
    drawGutter(painter, scene);
    drawMinimap(painter, scene);
    painter.save();
    painter.setClipRect(areas_.body);
    drawMarks(painter, scene);
    drawFlows(painter, scene);
    painter.restore();
    drawRuler(painter, scene, ticks);
}

void TimelinePainter::drawBody(const TimelineScene& scene, const std::vector<TimeTick>& ticks) {
    const QSize pixels = (QSizeF(areas_.body.size()) * ratio_).toSize();
    const BodyKey key{scene.data->table, scene.window, scene.scroll, scene.layout.height,
                      scene.revision,    theme_->id,   pixels};
    if (key == bodyKey_ && !body_.isNull()) return; // only marks have moved
    bodyKey_ = key;
    if (body_.size() != pixels) body_ = QImage(pixels, QImage::Format_RGB32);
    body_.setDevicePixelRatio(ratio_);
    ground_.assign(pixels.width(), theme_->plotBackground.rgb());
    for (const TimeTick& tick : ticks) {
        const double x = (tick.ns - scene.window.from) / scene.window.size() * pixels.width();
        if (x >= 0 && x < pixels.width()) ground_[int(x)] = theme_->plotGrid.rgb();
    }
    for (int y = 0; y < pixels.height(); ++y)
        std::memcpy(body_.scanLine(y), ground_.data(), ground_.size() * sizeof(QRgb));
    labels_.clear();
    busyShare_.assign(scene.layout.rows.size(), -1);
    for (std::size_t i = 0; i < scene.layout.rows.size(); ++i) {
        const TimelineRow& row = scene.layout.rows[i];
        const int top = int(std::lround((row.y - scene.scroll) * ratio_));
        const int height = int(std::lround((row.y - scene.scroll + row.height) * ratio_)) - top;
        if (top >= pixels.height() || top + height <= 0) continue;
        if (row.curve >= 0) {
            drawCurve(scene, row, top, height);
            continue;
        }
        const std::size_t before = labels_.size();
        line_ = ground_;
        const double busy = fillLine(scene, row.lane, scene.window, line_, &labels_);
        busyShare_[i] = std::min(1.0, busy / scene.window.size());
        const int gap = std::max(1, int(std::lround(2 * ratio_)));
        for (int y = std::max(top, 0); y < std::min(top + height - gap, pixels.height()); ++y)
            std::memcpy(body_.scanLine(y), line_.data(), line_.size() * sizeof(QRgb));
        for (std::size_t label = before; label < labels_.size(); ++label) {
            labels_[label].where.moveTop(row.y - scene.scroll + areas_.body.top());
            labels_[label].where.setHeight(row.height - 2);
        }
    }
}

/// One line of pixels for all rows of a lane. @return the time that is busy in the window
double TimelinePainter::fillLine(const TimelineScene& scene, int lane, const TimeRange& window, Numbered<QRgb>& line,
                                 std::vector<Label>* labels) {
    const int width = line.count();
    const double perPixel = window.size() / width;
    columns_.assign(line.size(), {});
    double busy = 0;
    const SpanIndex& index = scene.data->index;
    const SpanFilter& filter = scene.data->filter;
    const bool filtering = filter.active();
    const auto put = [&](int x, float busyNs, int name, const SpanFilter::Share& share) {
        if (x < 0 || x >= width) return;
        Column& column = columns_[x];
        column.busyNs += busyNs;
        if (busyNs > column.nameNs) column.nameNs = busyNs, column.name = name;
        if (!filtering || share.name < 0) return;
        const float kept = busyNs * float(share.kept);
        column.keptNs += kept;
        if (kept > column.keptNameNs) column.keptNameNs = kept, column.keptName = share.name;
    };
    index.cover(
        lane, std::int64_t(std::floor(window.from)), std::int64_t(std::ceil(window.to)), perPixel,
        [&](const SpanBar& bar) {
            const double x0 = (double(bar.startNs) - window.from) / perPixel;
            const double x1 = (double(bar.endNs) - window.from) / perPixel;
            const double share =
                std::max(0.0, std::min(x1, double(width)) - std::max(x0, 0.0)) / std::max(x1 - x0, 1e-9);
            busy += double(bar.busyNs) * (x1 > x0 ? share : 0);
            if (bar.count > 1 || x1 - x0 < 1) {
                const SpanFilter::Share kept = filtering ? filter.shareOf(index, lane, bar) : SpanFilter::Share();
                const int left = int(std::floor(x0)), right = int(std::floor(x1));
                if (left == right || x1 - x0 <= 0) {
                    put(left, float(bar.busyNs), bar.name, kept);
                } else { // at most two pixels: shared by how much lies in each
                    const double first = (right - x0) / (x1 - x0);
                    put(left, float(double(bar.busyNs) * first), bar.name, kept);
                    put(right, float(double(bar.busyNs) * (1 - first)), bar.name, kept);
                }
                return;
            }
            const int left = std::clamp(int(std::lround(x0)), 0, width);
            const int right = std::clamp(std::max(int(std::lround(x1)), int(std::lround(x0)) + 1), 0, width);
            if (left >= right) return;
            const bool kept = !filtering || filter.keeps(index.at({lane, bar.first}));
            const QRgb colour = colourOf(scene, bar.name, kept);
            std::fill(line.begin() + left, line.begin() + right, colour);
            if (right - left > 3) // tells neighbours of one colour apart
                line[right - 1] = mixed(colour, theme_->plotBackground.rgb(), 0.55);
            if (labels && right - left >= kLeastLabel * ratio_)
                labels->push_back(
                    {{areas_.body.left() + left / ratio_, 0, (right - left) / ratio_, 0}, {lane, bar.first}, colour});
        });
    for (int x = 0; x < width; ++x) {
        const Column& column = columns_[x];
        if (column.name < 0) continue;
        // Where the filter keeps something, the pixel shows that, as strongly as it is busy.
        const bool shows = filtering && column.keptName >= 0;
        const double share = std::min(1.0, double(shows ? column.keptNs : column.busyNs) / perPixel);
        QRgb& pixel = line[x];
        pixel = mixed(pixel, colourOf(scene, shows ? column.keptName : column.name, shows || !filtering),
                      kFaintest + (1 - kFaintest) * share);
    }
    return busy;
}

void TimelinePainter::drawCurve(const TimelineScene& scene, const TimelineRow& row, int top, int height) {
    const TimelineData& data = *scene.data;
    const auto [lowest, highest] = curveScale(data, row.curve);
    const QRgb strong = curveColour(data, row.curve, *theme_);
    const QRgb soft = mixed(strong, theme_->plotBackground.rgb(), 0.78);
    const int width = body_.width(), thick = std::max(1, int(std::lround(1.4 * ratio_)));
    const double perPixel = scene.window.size() / width;
    const int bottom = top + height - 1;
    const auto yOf = [&](double value) {
        const double share = std::clamp((value - lowest) / std::max(highest - lowest, 1e-300), 0.0, 1.0);
        return bottom - int(std::lround(share * (height - 1 - thick)));
    };
    const int zero = yOf(0);
    stretches_.assign(width, {});
    int lastTop = 0, lastBottom = 0; // of the curve in the column before
    bool joined = false;             // there was one
    for (int x = 0; x < width; ++x) {
        float low = 0, high = 0;
        const auto from = std::int64_t(std::floor(scene.window.from + x * perPixel));
        if (!curveRange(data, row.curve, from, from + std::int64_t(std::max(perPixel, 1.0)), low, high)) {
            joined = false;
            continue;
        }
        const int ownTop = yOf(double(high)) - thick + 1, ownBottom = yOf(double(low));
        Stretch& stretch = stretches_[x];
        stretch.above = joined ? std::min(ownTop, lastBottom) : ownTop; // steps of the curve are joined
        stretch.below = joined ? std::max(ownBottom, lastTop) : ownBottom;
        stretch.first = std::min(stretch.above, zero);
        stretch.last = std::max(stretch.below, zero);
        lastTop = ownTop;
        lastBottom = ownBottom;
        joined = true;
    }
    for (int y = std::max(0, top); y <= std::min(bottom, body_.height() - 1); ++y) { // by rows, as memory lies
        auto* line = reinterpret_cast<QRgb*>(body_.scanLine(y));
        for (int x = 0; x < width; ++x) {
            const Stretch& stretch = stretches_[x];
            if (y >= stretch.first && y <= stretch.last)
                line[x] = y >= stretch.above && y <= stretch.below ? strong : soft;
        }
    }
    if (bottom >= 0 && bottom < body_.height())
        std::fill_n(reinterpret_cast<QRgb*>(body_.scanLine(bottom)), width, theme_->plotGrid.rgb());
}

void TimelinePainter::drawLabels(QPainter& painter, const TimelineScene& scene, bool vector) {
    if (textFont_ != font_ || textTable_ != scene.data->table || texts_.size() > kTextsKept) texts_.clear();
    textFont_ = font_;
    textTable_ = scene.data->table;
    const QFontMetricsF metrics(font_);
    painter.save();
    painter.setClipRect(areas_.body);
    QRgb pen = 0;
    for (const Label& label : labels_) {
        const QRectF where = label.where.adjusted(4, 0, -3, 0);
        const TimelineSpan span = scene.data->index.at(label.span);
        const QRgb wanted = textOn(label.behind);
        if (wanted != pen) painter.setPen(QColor::fromRgb(pen = wanted));
        const double y = where.top() + (where.height() - metrics.height()) / 2;
        // Elided to a multiple of 6 pixels, so that a pan finds the same text again.
        const int bucket = int(std::min(where.width() / 6, 100.0));
        const std::string& name = scene.data->index.names()[span.name];
        const bool own = name == "layer" || isStepName(name);
        const TextKey key{span.name, own ? span.step : -1, own ? span.layer : -1, bucket};
        const auto elided = [&](double width) {
            const QString full = shownName(*scene.data, span);
            if (metrics.horizontalAdvance(full) <= width) return full;
            // "deco…" or "aten…" forty times says nothing: the number does, or the end of the name.
            const QString brief = shortName(*scene.data, span);
            if (metrics.horizontalAdvance(brief) <= width) return brief;
            return own ? QString() : metrics.elidedText(brief, Qt::ElideRight, width);
        };
        if (vector) {
            painter.drawText(QPointF(where.left(), y + metrics.ascent()), elided(where.width()));
            continue;
        }
        auto text = texts_.find(key);
        if (text == texts_.end()) {
            const double width = bucket == 100 ? 1e4 : double(bucket) * 6;
            QStaticText made(elided(width));
            made.setTextFormat(Qt::PlainText);
            made.prepare({}, font_);
            text = texts_.insert(key, made);
        }
        painter.drawStaticText(QPointF(where.left(), y), *text);
    }
    painter.restore();
}

} // namespace kvscope::ui
