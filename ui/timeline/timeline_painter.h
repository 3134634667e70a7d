// Draws a scene: spans and curves as pixels of one image, so that a frame costs what the window has pixels, whatever
// the run; text, marks and arrows on top of it.
#pragma once

#include "ui/timeline/timeline_colours.h"
#include "ui/timeline/timeline_scene.h"

#include <QFont>
#include <QHash>
#include <QImage>
#include <QStaticText>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

class QPainter;

namespace kvscope::ui {

struct TimeTick;

class TimelinePainter {
public:
    /// Fills QRect({0, 0}, size). ratio: device pixels per logical one. vector: text stays text for a file.
    void paint(QPainter& painter, QSize size, const TimelineScene& scene, const Theme& theme, const QFont& font,
               double ratio, bool vector = false);

private:
    struct Label {
        QRectF where;
        SpanRef span;
        QRgb behind;
    };
    struct Column { // a pixel's worth of spans too short to tell apart
        float busyNs = 0, nameNs = -1, keptNs = 0, keptNameNs = -1;
        int name = -1, keptName = -1; // kept: by the filter
    };
    struct TextKey { // a label that was laid out; `name` is a number in the table of one run
        int name = 0, step = 0, layer = 0, width = 0;
        bool operator==(const TextKey&) const = default;
        friend std::size_t qHash(const TextKey& key, std::size_t seed) {
            return qHashMulti(seed, key.name, key.step, key.layer, key.width);
        }
    };
    /// A curve in one pixel column: its line covers the rows above..below, the area under it first..last.
    struct Stretch {
        int above = 0, below = -1, first = 0, last = -1;
    };
    struct BodyKey {             // everything that the body's pixels depend on
        std::uint64_t table = 0; // TimelineData::table: another run has another one
        TimeRange window;
        int scroll = 0, height = 0;
        quint64 revision = 0;
        QString theme;
        QSize pixels;
        bool operator==(const BodyKey&) const = default;
    };
    void drawBody(const TimelineScene& scene, const std::vector<TimeTick>& ticks);
    void drawCurve(const TimelineScene& scene, const TimelineRow& row, int top, int height);
    double fillLine(const TimelineScene& scene, int lane, const TimeRange& window, Numbered<QRgb>& line,
                    std::vector<Label>* labels);
    QRgb colourOf(const TimelineScene& scene, int name, bool kept) const;
    void drawMinimap(QPainter& painter, const TimelineScene& scene);
    void drawRuler(QPainter& painter, const TimelineScene& scene, const std::vector<TimeTick>& ticks);
    void drawBeyond(QPainter& painter, const TimelineScene& scene);
    void drawGutter(QPainter& painter, const TimelineScene& scene);
    void drawLabels(QPainter& painter, const TimelineScene& scene, bool vector);
    void drawMarks(QPainter& painter, const TimelineScene& scene);
    void drawFlows(QPainter& painter, const TimelineScene& scene);
    QRectF rectOf(const TimelineScene& scene, SpanRef ref) const; // empty: its row is folded away
    QRectF rectIn(const TimelineScene& scene, const TimelineRow& row, SpanRef ref) const;
    std::optional<QRectF> arrowRect(const TimelineScene& scene, SpanRef ref) const;

    const Theme* theme_ = nullptr;
    double ratio_ = 1;
    QFont font_;
    TimelineAreas areas_;
    SpanColours spanColours_;
    const Numbered<QRgb>* colours_ = nullptr;
    QImage body_, minimap_;
    BodyKey bodyKey_;
    quint64 minimapRevision_ = 0;
    std::uint64_t minimapTable_ = 0; // TimelineData::table of the names in minimap_
    TimeRange minimapOf_;            // the time that minimap_ shows
    QString minimapTheme_;
    Numbered<QRgb> ground_, line_;
    Numbered<Column> columns_;
    Numbered<Stretch> stretches_;
    std::vector<Label> labels_;
    std::vector<double> busyShare_; // by row of the layout, over the window; < 0: not drawn
    QHash<TextKey, QStaticText> texts_;
    QFont textFont_;
    std::uint64_t textTable_ = 0; // TimelineData::table of the names in texts_
};

/// An arrow as far as it can be seen: an end that lies outside goes to the edge it lies behind.
struct ArrowEnds {
    QPointF from, to;
    bool fromOutside = false, toOutside = false;
    bool seen = true; // false: both ends are behind the same edge
};
ArrowEnds arrowWithin(const QRectF& body, QPointF from, QPointF to);

/// Where beyondText is written in the ruler; empty where it is not. A click there shows everything.
QRect beyondRect(const TimelineScene& scene, const TimelineAreas& areas, const QFont& font, bool left);

} // namespace kvscope::ui
