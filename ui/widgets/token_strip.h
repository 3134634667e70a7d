// The strip that shows the generated tokens as chips in reading order. The user moves the step cursor of all views with
// it.
#pragma once

#include "base/indexed.h"
#include "ui/frame/shortcuts.h"
#include "ui/models/token_flow.h"

#include <QAbstractScrollArea>
#include <QHash>
#include <QString>
#include <QWidget>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

class QComboBox;
class QLabel;
class QToolButton;

namespace kvscope::ui {

class Workspace;

struct TokenChip {
    int step = -1;    // -1: a token of the prompt
    int position = 0; // -1: stands for tokens that are left out
    std::int32_t id = 0;
    std::string bytes;
    bool ofFact = false; // of the fact that the prompt asks for
};

/// Paints only the visible lines. A bar under each chip shows the misses of its step.
class TokenStrip final : public QAbstractScrollArea {
    Q_OBJECT
public:
    explicit TokenStrip(QWidget* parent = nullptr);

    static std::vector<ShortcutText> gestures(); // for the list of shortcuts
    void clear();
    /// What stands in the strip while it has no tokens.
    void setEmptyText(const QString& text);
    const QString& emptyText() const { return emptyText_; }
    /// Replaces all chips by the last tokens of the prompt. The generated tokens follow them.
    void setPrompt(std::vector<TokenChip> tail);
    void append(std::vector<TokenChip> chips);
    /// The first step behind the prompts, whose misses fill empty slots; 1 until it is set.
    void setFirstDecode(int step) { firstDecode_ = step; }
    /// Sets the misses of a step, summed over all layers, heads and sequences.
    void setMisses(int step, std::int64_t misses);
    void setCursor(int step, int firstStep, int lastStep);
    /// Underlines the tokens of the chosen block. The range of positions excludes `endPosition`; if it is empty, no
    /// token is underlined.
    void setBlock(int firstPosition, int endPosition);

    /// Frames the tokens that hold this text, alone or with those beside them; the case of A to Z does not matter. An
    /// empty text frames none.
    void setFound(const QString& text);
    bool isFound(int chip) const { return chip >= 0 && chip < found_.count() && found_[chip]; }

    int chipCount() const { return int(chips_.size()); }
    int promptCount() const { return promptCount_; }
    int lastStep() const; // step of the last generated token; -1: none
    /// The text that these steps generated, with malformed UTF-8 replaced. lastStep < 0: up to the last step.
    QString generatedText(int firstStep = 0, int lastStep = -1) const;
    /// Scrolls to the chip of a step. @return its centre in viewport coordinates
    QPoint revealStep(int step);

signals:
    void stepChosen(int step);
    void rangeChosen(int firstStep, int lastStep);
    void rangeCleared();
    void promptTokenChosen(int position);
    /// `step`: -1 if the place is not on a generated token.
    void menuRequested(QPoint global, int step);

protected:
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void mouseMoveEvent(QMouseEvent* event) override;
    void mouseReleaseEvent(QMouseEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void contextMenuEvent(QContextMenuEvent* event) override;
    void changeEvent(QEvent* event) override;
    bool viewportEvent(QEvent* event) override;
    QSize sizeHint() const override;

private:
    void addToFlow(std::size_t index);
    void find();
    void relayout();
    void updateScrollBar();
    int lineHeight() const;
    int chipAt(QPoint viewportPoint) const;
    int chipOfStep(int step) const;
    void reveal(int chip);
    void choose(int chip, bool extend);
    QString tipOf(int chip) const;
    double barShare(int step) const;

    Numbered<TokenChip> chips_;
    int promptCount_ = 0;
    TokenFlow flow_;
    std::string foundText_;
    Numbered<bool> found_;          // [chip] whether it holds foundText_; empty: no text
    QHash<QString, float> widths_;  // widths of chips in pixels, by what they show: runs differ in vocabularies
    Numbered<std::int64_t> misses_; // [step] misses; -1: not known
    /// The most misses of any decode step but the first; the height of the bars refers to it.
    std::int64_t largestMisses_ = 0;
    int firstDecode_ = 1;
    int step_ = 0, firstStep_ = -1, lastStep_ = -1;
    int firstOfBlock_ = -1, endOfBlock_ = -1; // positions
    int anchor_ = -1;                         // step at which the marked range began; -1: none
    bool dragging_ = false;
    QString emptyText_;
};

/// The token strip with its heading: the sequence, the place of the cursor, and whether the cursor follows a live run.
class TokenPanel final : public QWidget {
    Q_OBJECT
public:
    explicit TokenPanel(Workspace& workspace, QWidget* parent = nullptr);
    TokenStrip* strip() const { return strip_; }
    /// The row of controls that the window puts beside the title of the panel's dock, so that the strip has the full
    /// height. It belongs to the dock from then on.
    QWidget* heading() const { return heading_; }

private:
    void restart();
    void fetch();
    void showCursor();
    void showHeading();
    void showMenu(QPoint global, int step);

    Workspace& workspace_;
    TokenStrip* strip_;
    QWidget* heading_;
    QLabel *place_, *sequenceLabel_;
    QComboBox* sequence_;
    QToolButton* follow_;
    bool started_ = false, fetching_ = false, again_ = false, moving_ = false;
    int followedStep_ = -1; // the step to which following last moved the cursor
    int shownSequence_ = -1, knownSteps_ = 0, promptTokens_ = 0;
    bool promptKnown_ = true;
    QString answer_; // what was answered to a prompt that asks for a fact; empty: it asks for none
};

} // namespace kvscope::ui
