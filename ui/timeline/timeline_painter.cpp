#include "ui/timeline/timeline_painter.h"

#include "ui/plots/units.h"
#include "ui/theme.h"
#include "ui/timeline/time_ticks.h"

#include <QFontMetricsF>
#include <QPainter>
#include <QPainterPath>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvscope::ui {

namespace {
constexpr double kLeastLabel = 26;  // pixels: narrower spans have no text
constexpr int kTextsKept = 6000;    // laid-out labels
constexpr double kFaintest = 0.35;  // how strongly a single short span shows in its pixel
constexpr double kUnmatched = 0.78; // how far what a search did not find fades

QRgb textOn(QRgb colour) {
    const double light = 0.299 * qRed(colour) + 0.587 * qGreen(colour) + 0.114 * qBlue(colour);
    return light > 140 ? qRgb(20, 24, 30) : qRgb(250, 251, 253);
}
} // namespace

QRgb counterColour(int counter, const Theme& theme) {
    switch (counter) {
    case StepCounters::TokenRate:
        return theme.accent.rgb();
    case StepCounters::HitRate:
        return theme.ok.rgb();
    case StepCounters::ToDevice:
        return theme.component[5].rgb();
    case StepCounters::ToHost:
        return mixed(theme.component[5].rgb(), theme.mutedText.rgb(), 0.5);
    default:
        return theme.component[6].rgb();
    }
}

QString counterText(int counter, double value) {
    if (!std::isfinite(value)) return QStringLiteral("–");
    const QString unit = QString::fromUtf8(StepCounters::info(StepCounters::Counter(counter)).unit);
    if (unit == QLatin1String("share")) return formatValue(Unit::Percent, value * 100);
    if (unit == QLatin1String("bytes/s")) return formatValue(Unit::Bytes, value) + QStringLiteral("/s");
    return QString::number(value, 'f', value < 100 ? 1 : 0) + QStringLiteral("/s");
}

QRgb TimelinePainter::colourOf(const TimelineScene& scene, int name) const {
    const QRgb colour = (*colours_)[std::size_t(name)];
    if (scene.data->matches.empty() || scene.data->isMatch(name)) return colour;
    return mixed(colour, theme_->plotBackground.rgb(), kUnmatched);
}

void TimelinePainter::paint(QPainter& painter, QSize size, const TimelineScene& scene, const Theme& theme,
                            const QFont& font, double ratio, bool vector) {
    theme_ = &theme;
    ratio_ = ratio;
    font_ = font;
    areas_ = TimelineAreas::of(size);
    colours_ = &spanColours_.of(scene.data->index.names(), theme);
    painter.fillRect(QRect({0, 0}, size), theme.plotBackground);
    painter.setFont(font_);
    const std::vector<TimeTick> ticks = timeTicks(scene.window, areas_.body.width());
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
    const BodyKey key{scene.window, scene.scroll, scene.revision, theme_->id, pixels};
    if (key == bodyKey_ && !body_.isNull()) return; // only marks have moved
    bodyKey_ = key;
    if (body_.size() != pixels) body_ = QImage(pixels, QImage::Format_RGB32);
    body_.setDevicePixelRatio(ratio_);
    const auto width = std::size_t(pixels.width());
    ground_.assign(width, theme_->plotBackground.rgb());
    for (const TimeTick& tick : ticks) {
        const double x = (tick.ns - scene.window.from) / scene.window.size() * pixels.width();
        if (x >= 0 && x < pixels.width()) ground_[std::size_t(x)] = theme_->plotGrid.rgb();
    }
    for (int y = 0; y < pixels.height(); ++y) std::memcpy(body_.scanLine(y), ground_.data(), width * sizeof(QRgb));
    labels_.clear();
    busyShare_.assign(scene.layout.rows.size(), -1);
    for (std::size_t i = 0; i < scene.layout.rows.size(); ++i) {
        const TimelineRow& row = scene.layout.rows[i];
        const int top = int(std::lround((row.y - scene.scroll) * ratio_));
        const int height = int(std::lround((row.y - scene.scroll + row.height) * ratio_)) - top;
        if (top >= pixels.height() || top + height <= 0) continue;
        if (row.counter >= 0) {
            drawCounter(scene, row, top, height);
            continue;
        }
        const std::size_t before = labels_.size();
        line_ = ground_;
        const double busy = fillLine(scene, row.lane, scene.window, line_, &labels_);
        busyShare_[i] = std::min(1.0, busy / scene.window.size());
        const int gap = std::max(1, int(std::lround(2 * ratio_)));
        for (int y = std::max(top, 0); y < std::min(top + height - gap, pixels.height()); ++y)
            std::memcpy(body_.scanLine(y), line_.data(), width * sizeof(QRgb));
        for (std::size_t label = before; label < labels_.size(); ++label) {
            labels_[label].where.moveTop(row.y - scene.scroll + areas_.body.top());
            labels_[label].where.setHeight(row.height - 2);
        }
    }
}

/// One line of pixels for all rows of a lane. @return the time that is busy in the window
double TimelinePainter::fillLine(const TimelineScene& scene, int lane, const TimeRange& window, std::vector<QRgb>& line,
                                 std::vector<Label>* labels) {
    const int width = int(line.size());
    const double perPixel = window.size() / width;
    columns_.assign(line.size(), {});
    double busy = 0;
    const auto put = [&](int x, float busyNs, int name) {
        if (x < 0 || x >= width) return;
        Column& column = columns_[std::size_t(x)];
        column.busyNs += busyNs;
        if (busyNs > column.nameNs) column.nameNs = busyNs, column.name = name;
    };
    scene.data->index.cover(
        lane, std::int64_t(std::floor(window.from)), std::int64_t(std::ceil(window.to)), perPixel,
        [&](const SpanBar& bar) {
            const double x0 = (double(bar.startNs) - window.from) / perPixel;
            const double x1 = (double(bar.endNs) - window.from) / perPixel;
            const double share =
                std::max(0.0, std::min(x1, double(width)) - std::max(x0, 0.0)) / std::max(x1 - x0, 1e-9);
            busy += double(bar.busyNs) * (x1 > x0 ? share : 0);
            if (bar.count > 1 || x1 - x0 < 1) {
                const int left = int(std::floor(x0)), right = int(std::floor(x1));
                if (left == right || x1 - x0 <= 0) {
                    put(left, float(bar.busyNs), bar.name);
                } else { // at most two pixels: shared by how much lies in each
                    const double first = (right - x0) / (x1 - x0);
                    put(left, float(double(bar.busyNs) * first), bar.name);
                    put(right, float(double(bar.busyNs) * (1 - first)), bar.name);
                }
                return;
            }
            const int left = std::clamp(int(std::lround(x0)), 0, width);
            const int right = std::clamp(std::max(int(std::lround(x1)), int(std::lround(x0)) + 1), 0, width);
            if (left >= right) return;
            const QRgb colour = colourOf(scene, bar.name);
            std::fill(line.begin() + left, line.begin() + right, colour);
            if (right - left > 3) // tells neighbours of one colour apart
                line[std::size_t(right) - 1] = mixed(colour, theme_->plotBackground.rgb(), 0.55);
            if (labels && right - left >= kLeastLabel * ratio_)
                labels->push_back(
                    {{areas_.body.left() + left / ratio_, 0, (right - left) / ratio_, 0}, {lane, bar.first}, colour});
        });
    for (int x = 0; x < width; ++x) {
        const Column& column = columns_[std::size_t(x)];
        if (column.name < 0) continue;
        const double share = std::min(1.0, double(column.busyNs) / perPixel);
        QRgb& pixel = line[std::size_t(x)];
        pixel = mixed(pixel, colourOf(scene, column.name), kFaintest + (1 - kFaintest) * share);
    }
    return busy;
}

void TimelinePainter::drawCounter(const TimelineScene& scene, const TimelineRow& row, int top, int height) {
    const auto counter = StepCounters::Counter(row.counter);
    const StepCounters& counters = scene.data->counters;
    const bool share = QLatin1String(StepCounters::info(counter).unit) == QLatin1String("share");
    const double full = share ? 1.0 : counters.largest(counter) * 1.05;
    const QRgb colour = counterColour(row.counter, *theme_);
    const QRgb strong = colour, soft = mixed(colour, theme_->plotBackground.rgb(), 0.78);
    const int width = body_.width(), thick = std::max(1, int(std::lround(1.4 * ratio_)));
    const double perPixel = scene.window.size() / width;
    const int bottom = top + height - 1;
    const auto yOf = [&](double value) { return bottom - int(std::lround(value / full * (height - 1 - thick))); };
    int lastTop = 0, lastBottom = 0; // of the curve in the column before
    bool joined = false;             // there was one
    for (int x = 0; x < width; ++x) {
        float low = 0, high = 0;
        const double from = scene.window.from + x * perPixel;
        const bool there =
            counters.range(counter, std::int64_t(from), std::int64_t(from + std::max(perPixel, 1.0)), low, high);
        if (!there) {
            joined = false;
            continue;
        }
        const int ownTop = yOf(double(high)) - thick + 1, ownBottom = yOf(double(low));
        const int above = joined ? std::min(ownTop, lastBottom) : ownTop; // steps of the curve are joined
        const int below = joined ? std::max(ownBottom, lastTop) : ownBottom;
        lastTop = ownTop;
        lastBottom = ownBottom;
        joined = true;
        for (int y = std::max(0, above); y <= std::min(bottom, body_.height() - 1); ++y)
            reinterpret_cast<QRgb*>(body_.scanLine(y))[x] = y <= below ? strong : soft;
    }
    if (bottom >= 0 && bottom < body_.height())
        std::fill_n(reinterpret_cast<QRgb*>(body_.scanLine(bottom)), width, theme_->plotGrid.rgb());
}

void TimelinePainter::drawLabels(QPainter& painter, const TimelineScene& scene, bool vector) {
    if (textFont_ != font_ || texts_.size() > kTextsKept) texts_.clear();
    textFont_ = font_;
    const QFontMetricsF metrics(font_);
    painter.save();
    painter.setClipRect(areas_.body);
    QRgb pen = 0;
    for (const Label& label : labels_) {
        const QRectF where = label.where.adjusted(4, 0, -3, 0);
        const IndexedSpan span = scene.data->index.at(label.span);
        const QRgb wanted = textOn(label.behind);
        if (wanted != pen) painter.setPen(QColor::fromRgb(pen = wanted));
        const double y = where.top() + (where.height() - metrics.height()) / 2;
        // Elided to a multiple of 6 pixels, so that a pan finds the same text again.
        const auto bucket = quint64(std::min(where.width() / 6, 100.0));
        const quint64 variant = quint64(span.step + 1) << 10 | quint64((span.layer + 1) & 1023);
        const std::string& name = scene.data->index.names()[std::size_t(span.name)];
        const bool own = name == "layer" || name == nameOf(Phase::Decode) || name == nameOf(Phase::Prefill);
        const quint64 key = quint64(span.name) << 48 | (own ? variant % (quint64(1) << 40) : 0) << 7 | bucket;
        if (vector) {
            painter.drawText(QPointF(where.left(), y + metrics.ascent()),
                             metrics.elidedText(shownName(*scene.data, span), Qt::ElideRight, where.width()));
            continue;
        }
        auto text = texts_.find(key);
        if (text == texts_.end()) {
            const double width = bucket == 100 ? 1e4 : double(bucket) * 6;
            QStaticText made(metrics.elidedText(shownName(*scene.data, span), Qt::ElideRight, width));
            made.setTextFormat(Qt::PlainText);
            made.prepare({}, font_);
            text = texts_.insert(key, made);
        }
        painter.drawStaticText(QPointF(where.left(), y), *text);
    }
    painter.restore();
}

void TimelinePainter::drawGutter(QPainter& painter, const TimelineScene& scene) {
    const QRect& gutter = areas_.gutter;
    painter.save();
    painter.setClipRect(gutter);
    painter.fillRect(gutter, theme_->raised);
    const QFontMetricsF metrics(font_);
    const TimelineData& data = *scene.data;
    for (std::size_t i = 0; i < scene.layout.rows.size(); ++i) {
        const TimelineRow& row = scene.layout.rows[i];
        const QRectF where(gutter.left() + 8, gutter.top() + row.y - scene.scroll, gutter.width() - 16, row.height);
        if (where.bottom() < gutter.top() || where.top() > gutter.bottom() || !row.firstOfTrack) continue;
        if (row.counter >= 0) {
            const auto counter = StepCounters::Counter(row.counter);
            const double when = scene.hoverNs      ? *scene.hoverNs
                                : scene.cursorStep ? scene.cursorStep->from
                                                   : scene.window.from;
            const QRectF first(where.left(), where.top() + 3, where.width(), metrics.height());
            painter.setPen(theme_->text);
            painter.drawText(first, Qt::AlignLeft, QString::fromUtf8(StepCounters::info(counter).title));
            painter.setPen(QColor::fromRgb(counterColour(row.counter, *theme_))
                               .darker(theme_->id == QLatin1String("light") ? 125 : 100));
            painter.drawText(first.translated(0, metrics.height() + 1), Qt::AlignLeft,
                             counterText(row.counter, data.counters.at(counter, std::int64_t(when))));
            painter.setPen(theme_->mutedText);
            painter.drawText(first.translated(0, metrics.height() + 1), Qt::AlignRight,
                             QStringLiteral("max %1").arg(counterText(row.counter, data.counters.largest(counter))));
            continue;
        }
        const bool folds = i + 1 < scene.layout.rows.size() && scene.layout.rows[i + 1].track == row.track;
        painter.setPen(theme_->text);
        const QString busy = busyShare_[i] < 0 ? QString() : formatValue(Unit::Percent, busyShare_[i] * 100);
        const double room = where.width() - metrics.horizontalAdvance(busy) - 8;
        const QString track = (row.folded ? QStringLiteral("▸ ")
                               : folds    ? QStringLiteral("▾ ")
                                          : QString()) +
                              QString::fromStdString(data.index.tracks()[std::size_t(row.track)]);
        painter.drawText(where, Qt::AlignLeft | Qt::AlignVCenter, metrics.elidedText(track, Qt::ElideRight, room));
        painter.setPen(theme_->mutedText);
        painter.drawText(where, Qt::AlignRight | Qt::AlignVCenter, busy);
    }
    painter.setPen(theme_->border);
    painter.drawLine(gutter.topRight(), gutter.bottomRight());
    painter.restore();
}

void TimelinePainter::drawMinimap(QPainter& painter, const TimelineScene& scene) {
    const QRect& where = areas_.minimap;
    const QSize pixels = (QSizeF(where.size()) * ratio_).toSize();
    const TimeRange whole = scene.data->whole();
    if (minimap_.size() != pixels || minimapRevision_ != scene.revision || minimapTheme_ != theme_->id) {
        minimapRevision_ = scene.revision;
        minimapTheme_ = theme_->id;
        minimap_ = QImage(pixels, QImage::Format_RGB32);
        minimap_.setDevicePixelRatio(ratio_);
        minimap_.fill(theme_->raised.rgb());
        // The deepest lane of each of the first tracks: what the run did, one line each.
        std::vector<int> lanes;
        for (const TimelineRow& row : scene.layout.rows) {
            if (row.lane < 0) continue;
            if (row.firstOfTrack || lanes.empty())
                lanes.push_back(row.lane);
            else if (scene.data->index.lane(row.lane).row == 0)
                lanes.back() = row.lane;
        }
        if (lanes.size() > 4) lanes.resize(4);
        std::vector<QRgb> line;
        for (std::size_t i = 0; i < lanes.size(); ++i) {
            line.assign(std::size_t(pixels.width()), theme_->raised.rgb());
            fillLine(scene, lanes[i], whole, line, nullptr);
            const int top = int(double(pixels.height()) * double(i) / double(lanes.size())) + int(ratio_);
            const int bottom = int(double(pixels.height()) * double(i + 1) / double(lanes.size())) - int(ratio_);
            for (int y = top; y < bottom; ++y)
                std::memcpy(minimap_.scanLine(y), line.data(), line.size() * sizeof(QRgb));
        }
    }
    painter.drawImage(where.topLeft(), minimap_);
    const auto xOf = [&](double ns) {
        return std::clamp(where.left() + (ns - whole.from) / whole.size() * where.width(), double(where.left()),
                          double(where.right() + 1));
    };
    QColor veil = theme_->plotBackground;
    veil.setAlpha(150);
    const double left = xOf(scene.window.from), right = std::max(xOf(scene.window.to), left + 2);
    painter.fillRect(QRectF(where.left(), where.top(), left - where.left(), where.height()), veil);
    painter.fillRect(QRectF(right, where.top(), where.right() + 1 - right, where.height()), veil);
    painter.setPen(QPen(theme_->accent, 1));
    painter.setBrush(Qt::NoBrush);
    painter.drawRect(QRectF(left, where.top() + 0.5, right - left - 1, where.height() - 1));
    if (scene.cursorStep) {
        painter.setPen(QPen(theme_->cursor, 1));
        const double x = xOf(scene.cursorStep->from);
        painter.drawLine(QPointF(x, where.top()), QPointF(x, where.bottom()));
    }
    painter.setPen(theme_->mutedText);
    painter.drawText(QRect(8, where.top(), areas_.gutter.width() - 16, where.height()),
                     Qt::AlignLeft | Qt::AlignVCenter, QStringLiteral("whole run"));
}

void TimelinePainter::drawRuler(QPainter& painter, const TimelineScene& scene, const std::vector<TimeTick>& ticks) {
    const QRect& where = areas_.ruler;
    painter.save();
    painter.setPen(theme_->mutedText);
    painter.drawText(QRect(8, where.top(), areas_.gutter.width() - 16, where.height()),
                     Qt::AlignLeft | Qt::AlignVCenter,
                     QStringLiteral("shown: %1").arg(formatTime(scene.window.size(), scene.window.size() / 1000)));
    painter.setClipRect(where);
    painter.setPen(theme_->plotAxis);
    painter.drawLine(where.bottomLeft(), where.bottomRight());
    for (const TimeTick& tick : ticks) {
        const double x = areas_.xOf(tick.ns, scene.window);
        painter.setPen(theme_->plotAxis);
        painter.drawLine(QPointF(x, where.bottom() - 5), QPointF(x, where.bottom()));
        painter.setPen(theme_->mutedText);
        painter.drawText(QPointF(x + 4, where.bottom() - 6), tick.label);
    }
    for (const Note& note : scene.data->notes) { // flags
        const double x = areas_.xOf(double(note.startNs), scene.window);
        if (x < where.left() - 12 || x > where.right()) continue;
        painter.setPen(Qt::NoPen);
        painter.setBrush(theme_->warning);
        const double y = where.top() + 1;
        painter.drawPolygon(QPolygonF{{x, y}, {x + 9, y + 3.5}, {x, y + 7}});
        painter.setPen(QPen(theme_->warning, 1));
        painter.drawLine(QPointF(x, y), QPointF(x, where.bottom()));
    }
    painter.restore();
}

QRectF TimelinePainter::rectOf(const TimelineScene& scene, SpanRef ref) const {
    const TimelineRow* row = scene.layout.rowOf(ref.lane);
    if (!row) return {};
    const IndexedSpan span = scene.data->index.at(ref);
    const double left = areas_.xOf(double(span.startNs), scene.window),
                 right = areas_.xOf(double(span.endNs()), scene.window);
    return {left, double(areas_.body.top() + row->y - scene.scroll), std::max(right - left, 1.0), row->height - 2.0};
}

void TimelinePainter::drawMarks(QPainter& painter, const TimelineScene& scene) {
    const QRect& body = areas_.body;
    const auto band = [&](const TimeRange& range, QColor colour, int alpha, bool right) {
        const double x0 = std::clamp(areas_.xOf(range.from, scene.window), body.left() - 2.0, body.right() + 2.0);
        const double x1 = std::clamp(areas_.xOf(range.to, scene.window), body.left() - 2.0, body.right() + 2.0);
        painter.setPen(QPen(colour, 1));
        painter.drawLine(QPointF(x0, body.top()), QPointF(x0, body.bottom()));
        if (right) painter.drawLine(QPointF(x1, body.top()), QPointF(x1, body.bottom()));
        colour.setAlpha(alpha);
        painter.fillRect(QRectF(x0, body.top(), std::max(1.0, x1 - x0), body.height()), colour);
    };
    if (scene.cursorStep) band(*scene.cursorStep, theme_->cursor, 14, false);
    for (const Note& note : scene.data->notes)
        if (note.durationNs > 0)
            band({double(note.startNs), double(note.startNs + note.durationNs)}, theme_->warning, 24, true);
    if (scene.range) {
        band(*scene.range, theme_->accent, 34, true);
        const double middle =
            (areas_.xOf(scene.range->from, scene.window) + areas_.xOf(scene.range->to, scene.window)) / 2;
        const QString text = formatTime(scene.range->size(), scene.range->size() / 1000);
        const QFontMetricsF metrics(font_);
        QRectF box(0, body.top() + 3, metrics.horizontalAdvance(text) + 12, metrics.height() + 4);
        box.moveLeft(std::clamp(middle - box.width() / 2, double(body.left()),
                                std::max(double(body.left()), body.right() - box.width())));
        painter.setPen(Qt::NoPen);
        painter.setBrush(theme_->accent);
        painter.drawRoundedRect(box, 3, 3);
        painter.setPen(QColor::fromRgb(textOn(theme_->accent.rgb())));
        painter.drawText(box, Qt::AlignCenter, text);
    }
    if (scene.selected) {
        const QRectF where = rectOf(scene, *scene.selected);
        if (!where.isEmpty()) {
            // Cut to the body first: a zoomed span may be millions of pixels wide.
            const QRectF shown = where.adjusted(-1, -1, 1, 0) & QRectF(body).adjusted(-4, -4, 4, 4);
            painter.setBrush(Qt::NoBrush);
            painter.setPen(QPen(theme_->plotBackground, 4));
            painter.drawRect(shown);
            painter.setPen(QPen(theme_->cursor, 2));
            painter.drawRect(shown);
        }
    }
}

void TimelinePainter::drawFlows(QPainter& painter, const TimelineScene& scene) {
    painter.setRenderHint(QPainter::Antialiasing);
    for (const SpanFlow& flow : scene.flows) {
        const QRectF from = rectOf(scene, flow.from), to = rectOf(scene, flow.to);
        if (from.isEmpty() || to.isEmpty()) continue;
        const bool launch = flow.kind == SpanFlow::Kind::Launch;
        // Launches leave where the stage begins, transfers arrive where they end.
        const double reach = 4.0 * areas_.body.width();
        const QPointF a(std::clamp(launch ? from.left() : from.right(), -reach, reach), from.center().y());
        const QPointF b(std::clamp(to.left(), -reach, reach), to.center().y());
        const double bend = std::clamp(std::abs(b.x() - a.x()) / 2, 24.0, 160.0);
        QPainterPath path(a);
        path.cubicTo(a + QPointF(bend, 0), b - QPointF(bend, 0), b);
        painter.setBrush(Qt::NoBrush);
        painter.setPen(QPen(theme_->plotBackground, 4));
        painter.drawPath(path);
        const QColor colour = launch ? theme_->accent : theme_->danger;
        painter.setPen(QPen(colour, 1.6));
        painter.drawPath(path);
        painter.setPen(Qt::NoPen);
        painter.setBrush(colour);
        painter.drawPolygon(QPolygonF{b, b + QPointF(-8, -4.5), b + QPointF(-8, 4.5)});
        painter.drawEllipse(a, 2.5, 2.5);
    }
    painter.setRenderHint(QPainter::Antialiasing, false);
}

} // namespace kvscope::ui
