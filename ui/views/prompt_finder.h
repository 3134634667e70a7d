// Finds text in the prompt that the Selection view shows: every block that holds it, also those that no head selected.
#pragma once

#include "profiler/read/prompt_search.h"
#include "ui/frame/workspace.h"
#include "ui/plots/legend_strip.h"

#include <qcustomplot.h>

#include <QObject>

#include <optional>
#include <vector>

class QLineEdit;
class QMenu;
class QToolButton;

namespace kvscope::ui {

class FoundPlottable;
class PlotCanvas;
struct Theme;

/// Looks for the text of its field, or, while that is empty, for the text of the shared filter.
class PromptFinder final : public QObject {
    Q_OBJECT
public:
    /// main: the panel of the mask, over which the blocks are marked.
    PromptFinder(Workspace& workspace, PlotCanvas& plot, QCPAxisRect* main, QObject* parent);

    /// The field, and the buttons to the previous and the next block with the list, which are shown while there is a
    /// text; the caller takes both.
    QWidget* field() const;
    QWidget* results() const { return results_; }
    /// Searches the prompt of the cursor's sequence in the current run.
    void restart();
    /// To be called when the run has grown.
    void advance();
    /// To be called when the cursor has moved within its sequence.
    void moved();
    void applyTheme(const Theme& theme);
    const std::vector<FoundBlock>& found() const { return matches_.blocks; }
    /// Moves the cursor to the next or the previous found block, around the end.
    void go(bool forward);
    /// HTML line about a found block at the cursor's step; empty for other blocks.
    QString blockText(int block) const;
    QVector<Swatch> swatches(const Theme& theme) const;

signals:
    void changed(); // other blocks are found, or other heads selected them

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    void makeTools();
    void search();
    void askHeads();
    void showCount();
    void fillList();
    QString wanted() const;
    QString sentenceOf(const BlockChoice& choice) const;
    void goTo(int block);
    std::optional<std::size_t> current() const; // the found block on which the cursor stands

    Workspace& workspace_;
    PlotCanvas& plot_;
    FoundPlottable* marks_ = nullptr;
    QWidget* results_ = nullptr;
    QLineEdit* field_ = nullptr;
    QToolButton *previous_ = nullptr, *next_ = nullptr, *count_ = nullptr;
    QMenu* list_ = nullptr;
    RunKey key_; // whose prompt was searched
    PromptMatches matches_;
    bool answered_ = false;            // matches_ is of the text that is wanted
    std::vector<BlockChoice> choices_; // [found block] at at_; empty: not read yet
    HeadAtStep at_;
};

} // namespace kvscope::ui
