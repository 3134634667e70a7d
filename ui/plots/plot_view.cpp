#include "ui/plots/plot_view.h"

#include "profiler/import/import.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/growth_turn.h"
#include "ui/frame/note_label.h"
#include "ui/frame/picture.h"
#include "ui/frame/read_filter.h"
#include "ui/frame/run_names.h"
#include "ui/frame/save_path.h"
#include "ui/frame/saved_file.h"
#include "ui/frame/svg_file.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_accessible.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/tool_strip.h"

#include <QAccessible>
#include <QApplication>
#include <QClipboard>
#include <QComboBox>
#include <QEvent>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QPageSize>
#include <QPdfWriter>
#include <QStackedWidget>
#include <QTextDocumentFragment>
#include <QTimer>
#include <QToolTip>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>
#include <memory>

namespace kvscope::ui {

namespace {
constexpr int kPictureMargin = 16;
constexpr int kPatienceMs = 300;
constexpr int kNoteLines = 2;  // of the note in a low view
constexpr int kWideView = 500; // pixels of width from which there is room for a column beside the plot

bool growsStill(const Workspace& workspace) {
    const auto runs = workspace.sides();
    return std::any_of(runs.begin(), runs.end(), [](const OpenRun* run) { return isGrowing(*run); });
}
} // namespace

PlotView::PlotView(Workspace& workspace, const QString& title, QWidget* parent)
    : View(parent), workspace_(workspace), title_(title) {
    setAccessibleName(title);
    column_ = new QVBoxLayout(this);
    column_->setContentsMargins(12, 10, 12, 8);
    column_->setSpacing(8);
    tools_ = new ToolStrip(this);
    column_->addWidget(tools_);

    pages_ = new QStackedWidget(this);
    canvas_ = new PlotCanvas;
    canvas_->setAccessibleName(tr("%1 plot").arg(title));
    canvas_->setAccessibleDescription(tr(
        "Drag pans, the wheel zooms the steps (with Ctrl, or over the axis, the values), Shift and drag zooms a box, "
        "Ctrl and drag selects steps, a double click resets. Arrow keys move the cursor, plus and minus zoom."));
    pages_->addWidget(canvas_);
    empty_ = new EmptyPage;
    pages_->addWidget(empty_);
    body_ = new QBoxLayout(QBoxLayout::LeftToRight);
    body_->setSpacing(12);
    body_->addWidget(pages_, 1);
    column_->addLayout(body_, 1);

    note_ = new NoteLabel;
    column_->addWidget(note_);

    patience_ = new QTimer(this);
    patience_->setSingleShot(true);
    patience_->setInterval(kPatienceMs);
    connect(patience_, &QTimer::timeout, this, [this] {
        showEmpty(tr("Reading the run"), tr("The first steps appear as soon as they are read, the others after them."));
    });

    setFocusProxy(canvas_);
    makePlotsAccessible();
    canvas_->applyTheme(Theme::current());
    connect(canvas_, &PlotCanvas::clicked, this, [this](int panel, QPointF at) { clickedAt(panel, at); });
    connect(canvas_, &PlotCanvas::hovered, this, [this](int panel, QPointF at, QPoint global) {
        hovering_ = true;
        hoverGlobal_ = global;
        const QString html = tooltipAt(panel, at);
        if (html.isEmpty())
            QToolTip::hideText();
        else
            QToolTip::showText(global, html, canvas_, {}, 60'000);
    });
    connect(canvas_, &PlotCanvas::hoverEnded, this, [this] {
        if (std::exchange(hovering_, false)) QToolTip::hideText();
    });
    // What is shown is read again, because another run is chosen or rows of this one turned out to break rules: until
    // then the tooltip speaks of what is no longer there.
    connect(&workspace_, &Workspace::currentChanged, this, [this] {
        if (std::exchange(hovering_, false)) QToolTip::hideText();
    });
    connect(canvas_, &PlotCanvas::visibleXChanged, this, [this] { visibleStepsChanged(); });
    connect(canvas_, &QCustomPlot::afterReplot, this, [this] { updateNote(); });
    connect(canvas_, &PlotCanvas::cursorMoveRequested, this, &PlotView::moveCursor);
    connect(canvas_, &PlotCanvas::cursorJumpRequested, this, &PlotView::jumpCursor);
    connect(canvas_, &PlotCanvas::stepsSelected, this, [this](double first, double last) {
        Cursor cursor = workspace_.cursor();
        cursor.firstStep = std::max(0, int(std::lround(first)));
        cursor.lastStep = std::max(0, int(std::lround(last)));
        workspace_.setCursor(cursor);
    });
    connect(canvas_, &PlotCanvas::menuRequested, this, &PlotView::showMenu);
    connect(canvas_, &PlotCanvas::detailsRequested, this, &PlotView::showDetails);

    connect(&workspace_, &Workspace::currentChanged, this, &PlotView::reload);
    connect(&workspace_, &Workspace::compareChanged, this, &PlotView::reload);
    const auto turn = std::make_shared<GrowthTurn>(*this, [this] {
        if (!stale_) runGrew();
    });
    connect(&workspace_, &Workspace::advanced, this, [this, turn] { turn->grew(!growsStill(workspace_)); });
    connect(&workspace_, &Workspace::runsChanged, this, [this, grew = false]() mutable {
        const bool grows = run() && isGrowing(*run());
        if (std::exchange(grew, grows) && !grows && !emptyText().isEmpty())
            reload(); // the run has ended, so the data that the empty page waits for will not come
    });
    connect(&workspace_, &Workspace::filterChanged, this, [this] {
        if (filterParts() != 0)
            reload();
        else
            updateNote();
    });
    connect(&workspace_, &Workspace::cursorChanged, this, [this] {
        if (!GrowthTurn::inSight(*this) || stale_) return;
        cursorMoved();
        if (workspace_.lastMove() != CursorMove::Person) return; // growth of a live run must not move the plot
        canvas_->revealMark();
        tellScreenReader();
    });
}

QString PlotView::noteText() const { return note_->text(); }

QString PlotView::emptyText() const { return pages_->currentIndex() == 1 ? empty_->text() : QString(); }

void PlotView::resetZoom() { canvas_->resetZoom(); }
void PlotView::undoZoom() { canvas_->undoZoom(); }
void PlotView::redoZoom() { canvas_->redoZoom(); }

void PlotView::applyTheme(const Theme& theme) {
    canvas_->applyTheme(theme);
    themed(theme);
    replot();
}

QComboBox* PlotView::addPicker(const QString& name, const QString& label, const QString& help) {
    auto* box = new QWidget(tools_);
    auto* row = new QHBoxLayout(box);
    row->setContentsMargins(0, 0, 0, 0);
    row->setSpacing(6);
    auto* caption = new QLabel(label, box);
    caption->setProperty("role", QStringLiteral("muted"));
    auto* picker = new QComboBox(box);
    picker->setObjectName(name);
    picker->setAccessibleName(label);
    picker->setToolTip(help);
    picker->setSizeAdjustPolicy(QComboBox::AdjustToContents);
    caption->setBuddy(picker);
    row->addWidget(caption);
    row->addWidget(picker);
    tools_->layout()->addWidget(box);
    return picker;
}

void PlotView::addTool(QWidget* widget) { tools_->layout()->addWidget(widget); }

void PlotView::addAbovePlot(QWidget* widget) { column_->insertWidget(column_->indexOf(body_), widget); }

void PlotView::addBesidePlot(QWidget* widget) { body_->addWidget(widget); }

void PlotView::resizeEvent(QResizeEvent* event) {
    View::resizeEvent(event);
    body_->setDirection(width() >= kWideView ? QBoxLayout::LeftToRight : QBoxLayout::TopToBottom);
    tools_->fit();
    note_->fit(*this, kNoteLines);
}

void PlotView::showReading() {
    showEmpty({}, {});
    patience_->start();
}

void PlotView::showEmpty(const QString& title, const QString& text, const std::vector<EmptyAction>& actions) {
    patience_->stop();
    empty_->setTexts(title, text, actions);
    pages_->setCurrentIndex(title.isEmpty() ? 0 : 1);
    setFocusProxy(pages_->currentWidget()); // a hidden page would not take the focus
    setAccessibleDescription(title.isEmpty() ? QString() : title + QStringLiteral(". ") + text);
    updateNote();
}

EmptyAction PlotView::showView(const char* id) const {
    const QByteArray action = QByteArrayLiteral("view_") + id;
    for (const ViewEntry& entry : views())
        if (std::string_view(entry.id) == id) return windowAction(*this, action, tr("Show %1").arg(tr(entry.title)));
    return {};
}

EmptyAction PlotView::clearFilter() const {
    return {tr("Clear the filter"), [this] { workspace_.setFilter({}); }};
}

EmptyAction PlotView::stopRun() const {
    if (!run() || isGrowing(*run()))
        return run() && run()->live ? windowAction(*this, "stop", tr("Stop the run")) : EmptyAction{};
    return windowAction(*this, "run", tr("Run the session")); // the run ended with nothing to show
}

void PlotView::showEmptyByFilter(const QString& title, std::vector<EmptyAction> more) {
    more.push_back(clearFilter());
    showEmpty(title, filterNote(workspace_.filter(), filterParts()) + tr("\n\nWiden or clear it in the filter bar."),
              more);
}

bool PlotView::showEmptyWithoutRun(const QString& whatItShows) {
    if (run() && run()->row.backend == RunBackend::Imported) {
        showEmpty(tr("An imported timeline"),
                  tr("%1\n\n%2 was %3. It has spans and counters, but no steps with selected blocks, which this view "
                     "needs: record a run with KVScope to have them.")
                      .arg(whatItShows, QString::fromStdString(run()->row.name),
                           QString::fromStdString(run()->row.statusMessage).section(QLatin1Char(';'), 0, 0)),
                  {showView("timeline"), showView("sql")});
        return true;
    }
    if (run()) return false;
    showEmpty(
        tr("No run is open"),
        tr("%1\n\nPress Run in the session form to record one, or open a .kvtrace file (Ctrl+O).").arg(whatItShows),
        {windowAction(*this, "run", tr("Run the session")), windowAction(*this, "open", tr("Open a trace…"))});
    return true;
}

void PlotView::updateTooltip(const QString& html) {
    if (hovering_ && !html.isEmpty()) QToolTip::showText(hoverGlobal_, html, canvas_, {}, 60'000);
}

void PlotView::replot() { canvas_->replot(QCustomPlot::rpQueuedReplot); }

void PlotView::updateNote() {
    const QString text = pages_->currentIndex() == 1 ? QString() : fullNote();
    if (note_->text() != text) note_->setText(text);
}

QString PlotView::fullNote() const {
    const QString filtered = run() ? filterNote(workspace_.filter(), filterParts()) : QString();
    const QString own = note();
    return filtered.isEmpty() ? own : own.isEmpty() ? filtered : filtered + QLatin1Char(' ') + own;
}

QString PlotView::healthNote() const {
    const OpenRun* open = run();
    if (!open) return {};
    QStringList sentences;
    if (open->row.serves() && open->row.steps > 0)
        sentences << tr("This run served requests: a step is the decode step of an iteration, and a sequence is a row, "
                        "which one request after another has.");
    if (open->row.droppedSteps > 0)
        sentences << tr("%1 steps were dropped while recording: totals are too low.")
                         .arg(formatCount(open->row.droppedSteps));
    if (open->row.stale) sentences << tr("The program that recorded this run ended without finishing it.");
    if (open->row.status == RunStatus::Failed && !open->row.statusMessage.empty())
        sentences << tr("The run failed: %1.").arg(QString::fromStdString(open->row.statusMessage));
    if (const QString broken = brokenText(workspace_, open->key); !broken.isEmpty())
        sentences << tr("%1 of the trace format: the numbers concerned mean nothing.").arg(broken);
    return sentences.join(QLatin1Char(' '));
}

void PlotView::reload() {
    if (!GrowthTurn::inSight(*this)) {
        stale_ = true;
        return;
    }
    stale_ = false;
    runChanged();
}

bool PlotView::event(QEvent* event) {
    if (event->type() == QEvent::FontChange || event->type() == QEvent::ApplicationFontChange)
        canvas_->applyTheme(Theme::current());
    return View::event(event);
}

void PlotView::showEvent(QShowEvent* event) {
    View::showEvent(event);
    tools_->setVisible(tools_->layout()->count() > 0); // a view without tools gets no empty row
    if (stale_) {
        reload();
    } else {
        runGrew(); // the run may have grown while the view was hidden
        cursorMoved();
    }
}

void PlotView::moveCursor(int steps, int layers) {
    if (!run()) return;
    Cursor cursor = workspace_.cursor();
    cursor.step += steps;
    cursor.layer += layers;
    workspace_.setCursor(cursor);
    if (steps != 0) canvas_->reveal(workspace_.cursor().step);
}

void PlotView::jumpCursor(bool toEnd) {
    if (!run()) return;
    Cursor cursor = workspace_.cursor();
    cursor.step = toEnd ? run()->row.steps - 1 : 0;
    workspace_.setCursor(cursor);
    canvas_->reveal(workspace_.cursor().step);
}

CursorMark PlotView::stepMark() const {
    CursorMark mark;
    if (!run()) return mark;
    const Cursor& cursor = workspace_.cursor();
    mark.x = cursor.step;
    if (cursor.firstStep >= 0) mark.selectedSteps = QCPRange(cursor.firstStep, cursor.lastStep);
    return mark;
}

void PlotView::showMark(CursorMark mark, const QList<QCPAxisRect*>& panels, const QList<QCPAxisRect*>& sharing) {
    for (QCPAxisRect* panel : panels) canvas_->overlay().setMark(panel, mark);
    mark.y.reset();
    for (QCPAxisRect* panel : sharing) canvas_->overlay().setMark(panel, mark);
    canvas_->replotOverlay();
}

PlotView::Details PlotView::detailsAtCursor() {
    for (int panel = 0; panel < canvas_->panels().size(); ++panel) {
        const QCPAxisRect* rect = canvas_->panels()[panel];
        const CursorMark mark = canvas_->overlay().markOf(rect);
        if (!mark.x) continue;
        const QCPAxis *x = rect->axis(QCPAxis::atBottom), *y = rect->axis(QCPAxis::atLeft);
        const QPointF at(*mark.x, mark.y.value_or(y->range().center()));
        const QString html = tooltipAt(panel, at);
        if (!html.isEmpty()) return {html, {x->coordToPixel(at.x()), y->coordToPixel(at.y())}};
    }
    return {};
}

/// Shows the tooltip at the cursor's place, for users of the keyboard.
void PlotView::showDetails() {
    const Details details = detailsAtCursor();
    if (details.html.isEmpty()) return;
    hovering_ = true; // so that an answer which comes later replaces the tooltip
    hoverGlobal_ = canvas_->mapToGlobal(details.pixel.toPoint());
    QToolTip::showText(hoverGlobal_, details.html, canvas_, {}, 60'000);
}

QString PlotView::cursorText() { return QTextDocumentFragment::fromHtml(detailsAtCursor().html).toPlainText(); }

void PlotView::tellScreenReader() {
    if (!QAccessible::isActive()) return; // no screen reader runs
    QAccessibleValueChangeEvent changed(canvas_, cursorText());
    QAccessible::updateAccessibility(&changed);
}

SqlScope PlotView::sqlScope() const {
    SqlScope scope;
    if (!run()) return scope;
    const QCPRange visible = canvas_->visibleX();
    scope.runId = run()->key.runId;
    scope.firstStep = std::max(0, int(std::ceil(visible.lower)));
    scope.lastStep = std::max(scope.firstStep, int(std::floor(visible.upper)));
    scope.filter = appliedFilter();
    return scope;
}

ReadFilter PlotView::appliedFilter() const { return readFilter(workspace_.filter(), filterParts()); }

void PlotView::exportDialog(const QString& suffix) {
    QString stem = title_.toLower().replace(QLatin1Char(' '), QLatin1Char('-'));
    if (run()) stem = QFileInfo(run()->key.path).completeBaseName() + QLatin1Char('-') + stem;
    const bool numbers = suffix == QLatin1String("csv") || suffix == QLatin1String("jsonl");
    const FileFormat format{suffix.toUpper(), suffix};
    const QString path = askSavePath(this, tr("Export %1").arg(title_), stem + QLatin1Char('.') + suffix,
                                     numbers ? withCompressed({format}) : std::vector<FileFormat>{format});
    if (path.isEmpty()) return;
    if (numbers) return exportNumbers(path);
    const QString why = whyNoPicture(*this, path, canvas_->size() + QSize(2 * kPictureMargin, 80));
    if (!why.isEmpty()) emit workspace_.failed(tr("%1 could not be written: %2.").arg(path, why));
}

void PlotView::copyImage() {
    const QSize size = canvas_->size() + QSize(2 * kPictureMargin, 80);
    const double ratio = std::max(2.0, devicePixelRatioF()); // at least 2, to be sharp in a document
    QImage image(size * ratio, QImage::Format_ARGB32_Premultiplied);
    image.setDevicePixelRatio(ratio);
    image.fill(Theme::current().plotBackground);
    QCPPainter painter;
    painter.begin(&image);
    paintPicture(painter, size, false);
    painter.end();
    QApplication::clipboard()->setImage(image);
}

int PlotView::drawAbove(QPainter*, QRect) const { return 0; }

QString PlotView::pictureTitle() const {
    return run() ? tr("%1: %2").arg(title_, runName(*run(), workspace_.runs())) : title_;
}

bool PlotView::exportImage(const QString& path, QSize size) {
    if (size.width() < 80 || size.height() < 80 || size.width() > 16'384 || size.height() > 16'384) return false;
    const QString suffix = QFileInfo(path).suffix().toLower();
    if (suffix == QLatin1String("png")) {
        const double ratio = pictureScale(*this);
        QImage image((QSizeF(size) * ratio).toSize(), QImage::Format_ARGB32_Premultiplied);
        if (image.isNull()) return false;
        image.setDevicePixelRatio(ratio);
        image.fill(Theme::current().plotBackground);
        QCPPainter painter;
        if (!painter.begin(&image)) return false;
        const bool painted = paintPicture(painter, size, false);
        painter.end();
        image.setText(QStringLiteral("Title"), pictureTitle());
        return painted && saveBytes(pngOf(image), path);
    }
    if (suffix == QLatin1String("svg")) {
        SvgFile svg(size, 96, pictureTitle(), fullNote());
        QCPPainter painter;
        if (!painter.begin(&svg.device())) return false;
        const bool painted = paintPicture(painter, size, true);
        painter.end();
        return painted && saveBytes(svg.document(), path);
    }
    if (suffix == QLatin1String("pdf") && hasMemoryForPdf()) {
        QBuffer document;
        document.open(QIODevice::WriteOnly);
        {
            QPdfWriter pdf(&document);
            pdf.setTitle(pictureTitle());
            pdf.setCreator(QStringLiteral("KVScope"));
            pdf.setResolution(96);
            pdf.setPageMargins(QMarginsF(0, 0, 0, 0));
            pdf.setPageSize(QPageSize(QSizeF(size) * 72.0 / 96.0, QPageSize::Point, {}, QPageSize::ExactMatch));
            QCPPainter painter;
            if (!painter.begin(&pdf)) return false;
            const bool painted = paintPicture(painter, size, true);
            painter.end();
            if (!painted) return false;
        }
        return saveBytes(document.data(), path);
    }
    return false;
}

bool PlotView::paintPicture(QPainter& base, QSize size, bool vector) {
    auto& painter = static_cast<QCPPainter&>(base);
    if (vector) painter.setMode(QCPPainter::pmVectorized);
    painter.setMode(QCPPainter::pmNoCaching);
    const Theme& theme = Theme::current();
    const QRect all(QPoint(0, 0), size);
    painter.fillRect(all, theme.plotBackground);
    const QRect area = all.adjusted(kPictureMargin, kPictureMargin, -kPictureMargin, -kPictureMargin);

    QFont bold = QApplication::font();
    bold.setBold(true);
    painter.setFont(bold);
    painter.setPen(theme.text);
    const QFontMetrics boldMetrics(bold);
    painter.drawText(QRect(area.left(), area.top(), area.width(), boldMetrics.height()),
                     Qt::AlignLeft | Qt::AlignVCenter,
                     boldMetrics.elidedText(pictureTitle(), Qt::ElideRight, area.width()));
    int top = area.top() + boldMetrics.height() + 10;
    if (pages_->currentIndex() == 1) {
        painter.setFont(QApplication::font());
        painter.setPen(theme.mutedText);
        painter.drawText(area, Qt::AlignCenter | Qt::TextWordWrap, emptyText());
        return true;
    }
    painter.setFont(QApplication::font());
    top += drawAbove(&painter, QRect(area.left(), top, area.width(), area.bottom() - top));

    // The layout keeps two lines for the note, whose text depends on the plot as drawn at this size.
    QFont small = QApplication::font();
    small.setPointSizeF(std::max(7.5, small.pointSizeF() - 1));
    const QFontMetrics smallMetrics(small);
    const int noteHeight = 2 * smallMetrics.lineSpacing() + 2;
    const QRect plot(area.left(), top, area.width(), std::max(40, area.bottom() - noteHeight - 6 - top));
    if (!canvas_->testAttribute(Qt::WA_WState_ExplicitShowHide) || !canvas_->isHidden()) { // the view has something
        painter.save();
        painter.translate(plot.topLeft());
        canvas_->overlay().setVisible(false); // a picture shows data, not the user's cursor
        canvas_->toPainter(&painter, plot.width(), plot.height());
        canvas_->overlay().setVisible(true);
        painter.restore();
    }

    painter.setClipping(false);
    painter.setFont(small);
    painter.setPen(theme.mutedText);
    painter.drawText(QRect(area.left(), area.bottom() - noteHeight + 1, area.width(), noteHeight),
                     Qt::AlignLeft | Qt::AlignTop | Qt::TextWordWrap, fullNote());
    replot(); // toPainter laid the plot out for the picture's size
    return true;
}

} // namespace kvscope::ui
