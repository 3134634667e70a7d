// Facts about what is selected: a span of the timeline, the run, the cursor's step or range, and the cursor's block
// with its text.
#pragma once

#include "profiler/read/trace_reader.h"
#include "ui/frame/fact_table.h"

#include <QScrollArea>

#include <optional>
#include <utility>
#include <vector>

class QLabel;
class QPlainTextEdit;

namespace kvscope::ui {

class MutedLabel;
class Section;
class Workspace;

class Inspector final : public QScrollArea {
    Q_OBJECT
public:
    explicit Inspector(Workspace& workspace, QWidget* parent = nullptr);
    FactTable* runFacts() const { return runFacts_; }
    FactTable* stepFacts() const { return stepFacts_; }
    FactTable* headFacts() const { return headFacts_; }
    FactTable* blockFacts() const { return blockFacts_; }
    FactTable* spanFacts() const { return spanFacts_; }
    QString blockText() const;
    /// Empty: no span is chosen. Another run forgets it.
    void showSpan(const std::vector<std::pair<QString, QString>>& facts);

signals:
    void definitionRequested(const QString& id);

protected:
    void showEvent(QShowEvent* event) override;

private:
    struct Selected {
        std::vector<StepRow> steps;
        std::optional<SelectionRow> selection;
        std::string blockText;
    };
    void showRun();
    void fetch();
    void showStep(const Selected& selected);
    void showHead(const Selected& selected);
    void showBlock(const Selected& selected);

    Workspace& workspace_;
    Section *spanSection_, *runSection_, *stepSection_, *headSection_, *blockSection_, *parameterSection_;
    FactTable *spanFacts_, *runFacts_, *stepFacts_, *headFacts_, *blockFacts_, *parameterFacts_;
    MutedLabel *empty_, *stepNote_, *blockHint_;
    QPlainTextEdit* blockText_;
    bool fetching_ = false, again_ = false;
};

/// Explains a span in the inspector of the window that `from` is in, or takes the explanation away.
void explainSpan(const QWidget& from, const std::vector<std::pair<QString, QString>>& facts);
/// Whether a person sees an inspector there.
bool isSpanExplained(const QWidget& from);

} // namespace kvscope::ui
