// Where two runs part: the first token that differs, with the text on both sides, and the first selection.
#include "profiler/compare/divergence.h"
#include "profiler/compare/overlap.h"
#include "ui/frame/growth_turn.h"
#include "ui/frame/saved_file.h"
#include "ui/frame/svg_file.h"
#include "ui/frame/units.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"
#include "ui/views/compare/compare_pages.h"
#include "ui/views/compare/compare_ways.h"
#include "ui/views/compare/pair_feed.h"
#include "ui/views/run_text.h"
#include "ui/views/sequence_choice.h"

#include <QComboBox>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QPainter>
#include <QPdfWriter>
#include <QPushButton>
#include <QScrollArea>
#include <QVBoxLayout>

#include <algorithm>
#include <climits>
#include <cmath>
#include <memory>
#include <optional>

namespace kvscope::ui {

namespace {

constexpr int kPairsAtOnce = 128; // looked at until one differs
constexpr int kBlocksNamed = 12;
constexpr int kRedrawMs = 1500; // tokens of a run that grows

/// Text as one escaped paragraph whose line ends and control characters can be seen.
QString visible(const std::string& text) { return blockTextHtml(text, 4000); }

/// "17 (+0.002), 40": blocks with the gaps of their scores, where there are some.
QString blocks(const std::vector<std::int32_t>& ids, const std::vector<float>& gaps) {
    QStringList names;
    for (std::size_t i = 0; i < ids.size() && i < std::size_t(kBlocksNamed); ++i) {
        names << QString::number(ids[i]);
        if (i < gaps.size() && !std::isnan(gaps[i]))
            names.back() += QStringLiteral(" (+%1)").arg(double(gaps[i]), 0, 'g', 3);
    }
    if (ids.size() > std::size_t(kBlocksNamed))
        names << QObject::tr("and %1 more").arg(ids.size() - std::size_t(kBlocksNamed));
    return names.isEmpty() ? QObject::tr("none") : names.join(QStringLiteral(", "));
}

/// One other run against A, over one sequence or (-1) all that both have.
class Card final : public QFrame {
    Q_OBJECT
public:
    Card(Workspace& workspace, const OpenRun& a, const OpenRun& b, std::size_t index, int only, QWidget* parent)
        : QFrame(parent), workspace_(workspace), feed_(workspace, this, "compare divergence", kPairsAtOnce), a_(a),
          b_(b), letter_(runLetter(index)), index_(index), only_(only) {
        setObjectName(QStringLiteral("divergence"));
        auto* column = new QVBoxLayout(this);
        column->setContentsMargins(0, 0, 0, 12);
        title_ = new QLabel(tr("A and %1").arg(letteredName(index, workspace)));
        title_->setProperty("role", QStringLiteral("title"));
        tokens_ = new QLabel(tr("Comparing the tokens…"));
        tokens_->setObjectName(QStringLiteral("firstToken"));
        text_ = new QLabel;
        text_->setObjectName(QStringLiteral("divergingText"));
        selections_ = new QLabel(tr("Comparing the selections…"));
        selections_->setObjectName(QStringLiteral("firstSelection"));
        toToken_ = new QPushButton(tr("Go to the token"));
        toToken_->setObjectName(QStringLiteral("goToToken"));
        toToken_->setToolTip(tr("Move the cursor to the step that gave the first differing token"));
        toSelection_ = new QPushButton(tr("Go to the selection"));
        toSelection_->setObjectName(QStringLiteral("goToSelection"));
        toSelection_->setToolTip(tr("Move the cursor to the step, layer and KV head that differ first"));
        for (QLabel* label : {title_, tokens_, text_, selections_}) {
            label->setWordWrap(true);
            label->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
        }
        for (QLabel* label : {tokens_, text_, selections_}) label->setTextFormat(Qt::RichText);
        title_->setTextFormat(Qt::PlainText); // names of runs
        const auto beside = [](QPushButton* button) {
            auto* row = new QHBoxLayout;
            row->addWidget(button);
            row->addStretch();
            button->hide();
            return row;
        };
        column->addWidget(title_);
        column->addWidget(tokens_);
        column->addWidget(text_);
        column->addLayout(beside(toToken_));
        column->addSpacing(6);
        column->addWidget(selections_);
        column->addLayout(beside(toSelection_));
        connect(toToken_, &QPushButton::clicked, this, [this] {
            Cursor cursor = workspace_.cursor();
            cursor.step = std::max(token_->first->stepA, 0);
            cursor.sequence = sequence_;
            workspace_.setCursor(cursor);
        });
        connect(toSelection_, &QPushButton::clicked, this, [this] {
            Cursor cursor = workspace_.cursor();
            cursor.step = selection_->pair.a;
            cursor.layer = selection_->layer;
            cursor.sequence = selection_->sequence;
            cursor.kvHead = selection_->kvHead;
            if (!selection_->onlyA.empty()) cursor.block = selection_->onlyA.front();
            workspace_.setCursor(cursor);
        });
        askTokens();
        askSelections();
    }

    void grew(bool ended) {
        if (!token_ || !token_->first) tokensAgain_.grew(ended);
        if (!selection_) feed_.grew(ended);
        showSelection();
    }
    void retell() {
        if (token_) showTokens();
        showSelection();
    }
    QString csv() const {
        QString line = QStringLiteral("\"%1\"").arg(
            QString::fromStdString(b_.row.name).replace(QLatin1Char('"'), QLatin1String("\"\"")));
        if (token_ && token_->first)
            line += QStringLiteral(",%1,%2,%3,%4,%5")
                        .arg(token_->first->position)
                        .arg(token_->first->stepA)
                        .arg(token_->first->stepB)
                        .arg(token_->first->idA)
                        .arg(token_->first->idB);
        else
            line += QStringLiteral(",,,,,");
        if (selection_)
            line += QStringLiteral(",%1,%2,%3,%4,%5")
                        .arg(selection_->pair.a)
                        .arg(selection_->layer)
                        .arg(selection_->sequence)
                        .arg(selection_->kvHead)
                        .arg(selection_->jaccard, 0, 'g', 6);
        else
            line += QStringLiteral(",,,,,");
        return line + QLatin1Char('\n');
    }

private:
    /// The divergence that a piece of the steps shows.
    struct Found {
        std::optional<SelectionDifference> first;
        SelectionCoverage coverage;
    };

    void askTokens() {
        struct Answer {
            std::optional<TokenComparison> tokens;
            int sequence = 0;
            QString error;
        };
        workspace_.query<Answer>(
            this, "compare tokens", a_.key,
            [a = a_.key, b = b_.key, first = std::max(only_, 0),
             end = only_ >= 0 ? only_ + 1 : std::max(sequences(), 1)](TraceReader& reader) {
                Answer answer;
                try {
                    const TraceReader other(b.path.toStdString());
                    // The sequence that parts first; of a batch the others may well be equal.
                    for (int sequence = first; sequence < end; ++sequence) {
                        TokenComparison tokens = compareTokens(reader, a.runId, other, b.runId, sequence);
                        const auto stepOf = [](const TokenComparison& t) { return t.first ? t.first->stepA : INT_MAX; };
                        if (!answer.tokens || stepOf(tokens) < stepOf(*answer.tokens)) {
                            answer.tokens = std::move(tokens);
                            answer.sequence = sequence;
                        }
                    }
                } catch (const Error& error) {
                    if (error.kind == ErrorKind::Cancelled) throw;
                    answer.error = QString::fromStdString(oneLine(error));
                }
                return answer;
            },
            [this](Answer answer) {
                tokensAgain_.answered();
                if (!answer.tokens) {
                    tokens_->setText(answer.error.toHtmlEscaped());
                    return;
                }
                token_ = std::move(answer.tokens);
                sequence_ = answer.sequence;
                showTokens();
                showSelection();
            });
    }

    void askSelections() {
        if (const std::string refusal = overlapRefusal(a_.row, b_.row, letter_.toStdString()); !refusal.empty()) {
            refusal_ = QString::fromStdString(refusal);
            showSelection();
            return;
        }
        feed_.start(
            a_.key, b_.key, letter_, AlignBy::Step, 0,
            [runA = a_.key.runId, runB = b_.key.runId, only = only_](const TraceReader& a, const TraceReader& b,
                                                                     std::span<const StepPair> pairs) {
                OverlapRows rows = readOverlap(a, runA, b, runB, pairs, {}, only);
                return Found{std::move(rows.first), rows.coverage};
            },
            [this] {
                if (feed_.loaded() == 0) coverage_ = {};
                if (!feed_.error().isEmpty())
                    refusal_ = feed_.error();
                else if (!feed_.alignment().tooEarly)
                    refusal_ = QString::fromStdString(feed_.alignment().refusal);
                showSelection();
            },
            [this](Found found, std::span<const StepPair>) {
                selection_ = std::move(found.first);
                coverage_.add(found.coverage);
                showSelection();
                return !selection_.has_value();
            });
    }

    void showTokens() {
        const Theme& theme = Theme::current();
        const TokenComparison& t = *token_;
        // Where all sequences count, the text is that of the one that parts first.
        const QString batch = sequences() < 2         ? QString()
                              : only_ >= 0 || t.first ? tr(" of sequence %1").arg(sequence_)
                                                      : QString();
        toToken_->setVisible(t.first.has_value() && t.first->stepA >= 0);
        if (!t.first && only_ < 0 && sequences() > 1) {
            text_->hide();
            tokens_->setText(
                tr("<b>The texts are the same</b> in all %1 sequences, as far as both runs go.").arg(sequences()));
            return;
        }
        if (!t.first) {
            text_->hide();
            tokens_->setText(t.lengthA == t.lengthB
                                 ? tr("<b>The text is the same</b>: all %1 tokens%2, prompt included.")
                                       .arg(formatCount(t.common))
                                       .arg(batch)
                                 : tr("<b>The text is the same as far as both go</b>: %1 tokens%2, prompt included; "
                                      "then %3 has %4 more.")
                                       .arg(formatCount(t.common))
                                       .arg(batch, t.lengthA > t.lengthB ? QStringLiteral("A") : letter_,
                                            formatCount(std::abs(t.lengthA - t.lengthB))));
            return;
        }
        const TokenDifference& first = *t.first;
        if (first.inPrompt)
            tokens_->setText(
                tr("<b>The prompts differ</b> from position %1 on: %2 tokens%3 are common. Everything after has "
                   "another context.")
                    .arg(formatCount(first.position), formatCount(t.common), batch));
        else
            tokens_->setText(
                tr("<b>The first token that differs</b>%6 is at position %1%2, step %3 of A%4: %5 tokens agree "
                   "before it.")
                    .arg(formatCount(first.position), batch)
                    .arg(first.stepA)
                    .arg(first.stepB != first.stepA ? tr(" and %1 of %2").arg(first.stepB).arg(letter_) : QString())
                    .arg(formatCount(t.common))
                    .arg(only_ < 0 && sequences() > 1 ? tr(", of all %1 sequences,").arg(sequences()) : QString()));
        const auto side = [&](const QString& letter, const QColor& colour, const std::string& after, std::int32_t id) {
            return QStringLiteral(
                       "<tr><td style='padding:4px 12px 4px 0'><b><font color='%1'>%2</font></b></td>"
                       "<td style='padding:4px 0'><font color='%3'>%4</font><font color='%1'><b>%5</b></font></td>"
                       "<td style='padding:4px 0 4px 12px'><font color='%3'>%6</font></td></tr>")
                .arg(colour.name(), letter, theme.mutedText.name(), visible(first.before), visible(after),
                     tr("token %1").arg(id));
        };
        text_->setText(QStringLiteral("<table>") + side(QStringLiteral("A"), runColour(0), first.afterA, first.idA) +
                       side(letter_, runColour(index_), first.afterB, first.idB) + QStringLiteral("</table>"));
        text_->show();
    }

    void showSelection() {
        toSelection_->setVisible(selection_.has_value());
        if (!refusal_.isEmpty()) {
            selections_->setText(tr("The selections cannot be compared: %1.").arg(refusal_.toHtmlEscaped()));
            return;
        }
        if (!selection_) {
            const int all = feed_.total();
            const std::string nothing = coverageRefusal(coverage_, letter_.toStdString());
            if (feed_.alignment().tooEarly && growing())
                selections_->setText(tr("Waiting for the first decode step of both runs."));
            else if (feed_.alignment().tooEarly)
                selections_->setText(tr("<b>There are no selections to compare</b>: %1.")
                                         .arg(QString::fromStdString(feed_.alignment().refusal).toHtmlEscaped()));
            else if (feed_.loaded() < all || feed_.loading() || all == 0)
                selections_->setText((nothing.empty()
                                          ? tr("Comparing the selections: %1 of %2 steps are the same so far…")
                                          : tr("Comparing the selections: %1 of %2 steps have none to compare so far…"))
                                         .arg(formatCount(feed_.loaded()), formatCount(all)));
            else if (!nothing.empty())
                selections_->setText(tr("<b>There are no selections to compare</b>: %1.")
                                         .arg(QString::fromStdString(nothing).toHtmlEscaped()));
            else
                selections_->setText(tr("<b>Every KV head%1 selects the same blocks</b> in all %2 steps that both "
                                        "have%3.")
                                         .arg(sequences() < 2 ? QString()
                                              : only_ >= 0    ? tr(" of sequence %1").arg(only_)
                                                              : tr(" of all %1 sequences").arg(sequences()),
                                              formatCount(all), growing() ? tr(" so far") : QString()));
            return;
        }
        const SelectionDifference& s = *selection_;
        QString order;
        if (token_ && token_->first && !token_->first->inPrompt) {
            const int ahead = token_->first->stepA - s.pair.a;
            order = ahead > 0 ? tr(" That is %1 steps before the text parts.").arg(ahead)
                    : ahead < 0
                        ? tr(" The text had parted %1 steps before, so the queries were others already.").arg(-ahead)
                        : tr(" That is the step in which the text parts.");
        } else if (token_ && token_->first) {
            order = tr(" The prompts differ, so this was to be expected.");
        } else if (token_) {
            order = growing() ? tr(" The text is the same so far.") : tr(" The text stays the same nevertheless.");
        }
        const auto scored = [](const std::vector<float>& gaps) {
            return std::any_of(gaps.begin(), gaps.end(), [](float gap) { return !std::isnan(gap); });
        };
        order += scored(s.gapsA) || scored(s.gapsB)
                     ? tr(" In brackets: by how much the block's score exceeds the lowest one that its list chose; "
                          "near 0, rounding decides.")
                     : tr(" No scores were recorded that say how near these blocks were to the others.");
        // Ids of blocks with different numbers of tokens are not of the same places.
        const QString ownOnes = a_.row.blockSize == b_.row.blockSize
                                    ? tr("Only A selects the blocks %1; only %2 selects %3.")
                                          .arg(blocks(s.onlyA, s.gapsA), letter_, blocks(s.onlyB, s.gapsB))
                                    : tr("It counts tokens: A's blocks have %1 and %2's %3. Blocks of A without a "
                                         "token that %2 selects: %4; "
                                         "blocks of %2 without one that A selects: %5.")
                                          .arg(formatCount(a_.row.blockSize), letter_, formatCount(b_.row.blockSize),
                                               blocks(s.onlyA, s.gapsA), blocks(s.onlyB, s.gapsB));
        selections_->setText(tr("<b>The first selection that differs</b> is that of %1, layer %2, KV head %3%4: "
                                "Jaccard %5. %6%7")
                                 .arg(stepName(a_.row, s.pair.a))
                                 .arg(s.layer)
                                 .arg(s.kvHead)
                                 .arg(sequences() > 1 ? tr(" of sequence %1").arg(s.sequence) : QString(),
                                      formatValue(Unit::Fraction, s.jaccard), ownOnes, order));
    }

    int sequences() const { return std::min(a_.row.sequences, b_.row.sequences); }
    bool growing() const { return someGrow(workspace_); }

    Workspace& workspace_;
    PairFeed<Found> feed_;
    OpenRun a_, b_;
    QString letter_, refusal_;
    std::size_t index_;
    int only_, sequence_ = 0;
    std::optional<TokenComparison> token_;
    std::optional<SelectionDifference> selection_;
    SelectionCoverage coverage_; // of the steps read so far
    QLabel *title_ = nullptr, *tokens_ = nullptr, *text_ = nullptr, *selections_ = nullptr;
    QPushButton *toToken_ = nullptr, *toSelection_ = nullptr;
    GrowthTimer tokensAgain_{kRedrawMs, [this] { askTokens(); }};
};

class DivergencePage final : public View {
    Q_OBJECT
public:
    DivergencePage(Workspace& workspace, QWidget* parent) : View(parent), workspace_(workspace) {
        setAccessibleName(tr("Divergence"));
        auto* outer = new QVBoxLayout(this);
        outer->setContentsMargins(0, 0, 0, 0);
        batch_ = new QWidget;
        auto* row = new QHBoxLayout(batch_);
        row->setContentsMargins(16, 10, 16, 0);
        auto* caption = new QLabel(tr("Sequence"));
        caption->setProperty("role", QStringLiteral("muted"));
        sequence_ = new QComboBox;
        sequence_->setObjectName(QStringLiteral("sequence"));
        sequence_->setAccessibleName(tr("Sequence"));
        sequence_->setToolTip(tr("One sequence of the batch, or the one of all of them that parts first"));
        caption->setBuddy(sequence_);
        fillSequences(*sequence_, 1);
        row->addWidget(caption);
        row->addWidget(sequence_);
        row->addStretch();
        batch_->hide();
        outer->addWidget(batch_);
        connect(sequence_, &QComboBox::currentIndexChanged, this, &DivergencePage::reload);
        auto* scroll = new QScrollArea;
        scroll->setWidgetResizable(true);
        scroll->setFrameShape(QFrame::NoFrame);
        sheet_ = new QWidget;
        sheet_->setMaximumWidth(1100);
        column_ = new QVBoxLayout(sheet_);
        column_->setContentsMargins(16, 14, 16, 12);
        empty_ = new QLabel;
        empty_->setObjectName(QStringLiteral("divergenceEmpty"));
        empty_->setTextFormat(Qt::PlainText);
        empty_->setWordWrap(true);
        empty_->setAlignment(Qt::AlignCenter);
        empty_->setProperty("role", QStringLiteral("muted"));
        column_->addWidget(empty_);
        column_->addStretch(1);
        scroll->setWidget(sheet_);
        outer->addWidget(scroll);
        connect(&workspace_, &Workspace::currentChanged, this, &DivergencePage::reload);
        connect(&workspace_, &Workspace::compareChanged, this, &DivergencePage::reload);
        connect(&workspace_, &Workspace::advanced, this, [this] {
            if (!GrowthTurn::inSight(*this)) return;
            if (waits_) return reload();
            for (Card* card : cards_) card->grew(!someGrow(workspace_));
        });
    }

    bool exportImage(const QString& path, QSize size) override {
        const QString suffix = QFileInfo(path).suffix().toLower();
        const QSize before = sheet_->size();
        sheet_->resize(size);
        sheet_->layout()->activate();
        const auto paint = [&](QPaintDevice& device) {
            QPainter painter;
            if (!painter.begin(&device)) return false;
            painter.fillRect(QRect(QPoint(), size), Theme::current().window);
            sheet_->render(&painter, {}, {}, QWidget::DrawChildren);
            return painter.end();
        };
        bool done = false;
        if (suffix == QLatin1String("png")) {
            QImage image(size * devicePixelRatioF(), QImage::Format_ARGB32_Premultiplied);
            image.setDevicePixelRatio(devicePixelRatioF());
            done = paint(image) && saveBytes(pngOf(image), path);
        } else if (suffix == QLatin1String("svg")) {
            SvgFile svg(size, 96, tr("Divergence"), {});
            done = paint(svg.device()) && saveBytes(svg.document(), path);
        } else if (suffix == QLatin1String("pdf") && hasMemoryForPdf()) {
            QBuffer document;
            document.open(QIODevice::WriteOnly);
            {
                QPdfWriter pdf(&document);
                pdf.setResolution(96);
                pdf.setPageMargins(QMarginsF());
                pdf.setPageSize(QPageSize(QSizeF(size) * 72.0 / 96.0, QPageSize::Point, {}, QPageSize::ExactMatch));
                done = paint(pdf);
            }
            done = done && saveBytes(document.data(), path);
        }
        sheet_->resize(before);
        return done;
    }
    QString exportCsv() const override {
        if (cards_.empty()) return {};
        QString csv =
            QStringLiteral("run,token_position,token_step_a,token_step_b,token_id_a,token_id_b,selection_step,layer,"
                           "seq,kv_head,jaccard\n");
        for (const Card* card : cards_) csv += card->csv();
        return csv;
    }
    void resetZoom() override {}
    void undoZoom() override {}
    void redoZoom() override {}
    void applyTheme(const Theme&) override {
        for (Card* card : cards_) card->retell();
    }

protected:
    void showEvent(QShowEvent* event) override {
        View::showEvent(event);
        if (stale_)
            reload();
        else
            for (Card* card : cards_) card->grew(!someGrow(workspace_)); // steps that came while the page was hidden
    }

private:
    void reload() {
        stale_ = !isVisible();
        if (stale_) return;
        for (Card* card : cards_) delete card;
        cards_.clear();
        const OpenRun* a = workspace_.current();
        const auto others = othersOf(workspace_);
        const QString missing = others.empty() ? QString() : waitsFor(workspace_);
        waits_ = !missing.isEmpty();
        empty_->setVisible(others.empty() || waits_);
        batch_->setVisible(!others.empty() && commonSequences(workspace_) > 1);
        fillSequences(*sequence_, commonSequences(workspace_));
        if (!a)
            empty_->setText(
                tr("No run is open. This page says where two runs part: the first token that differs, with the "
                   "text on both sides, and the first selection."));
        else if (others.empty())
            empty_->setText(
                tr("Choose a second run under “Compare with…”: this page then says where it parts from “%1”, in "
                   "text and in selections.")
                    .arg(runName(*a, workspace_.runs())));
        else if (waits_)
            empty_->setText(tr("Waiting for the first decode step: %1.").arg(missing));
        if (waits_) return;
        for (std::size_t i = 0; a && i < others.size(); ++i) {
            auto* card = new Card(workspace_, *a, *others[i], i + 1, chosenSequence(*sequence_), sheet_);
            column_->insertWidget(column_->count() - 1, card);
            cards_.push_back(card);
        }
    }

    Workspace& workspace_;
    QWidget* batch_ = nullptr;
    QComboBox* sequence_ = nullptr;
    QWidget* sheet_ = nullptr;
    QVBoxLayout* column_ = nullptr;
    QLabel* empty_ = nullptr;
    std::vector<Card*> cards_;
    bool stale_ = true, waits_ = false; // waits: for the description of a live run
};

} // namespace

View* makeCompareDivergence(Workspace& workspace, QWidget* parent) { return new DivergencePage(workspace, parent); }

} // namespace kvscope::ui

#include "compare_divergence.moc"
