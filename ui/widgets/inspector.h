// The panel that shows facts about what is selected: the chosen span of the timeline, the run, the step or the range of
// steps at the cursor, and the block at the cursor with its text.
#pragma once

#include "profiler/read/serving.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/trace_reader.h"
#include "ui/frame/fact_table.h"
#include "ui/frame/workspace.h"

#include <QScrollArea>

#include <optional>
#include <utility>
#include <vector>

class QLabel;
class QPlainTextEdit;

namespace kvscope::ui {

class MutedLabel;
class Section;

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
    /// Shows the facts of a span; empty: no span is chosen. When another run is shown, the panel forgets the span.
    void showSpan(const std::vector<std::pair<QString, QString>>& facts);

signals:
    void definitionRequested(const QString& id);

protected:
    void showEvent(QShowEvent* event) override;

private:
    struct Selected {
        std::vector<StepRow> steps;
        std::vector<StepKind> kinds; // of each step; empty: of one step only
        std::optional<SelectionRow> selection;
        std::string blockText;
        std::vector<MemberRow> members; // of an iteration of a server that is no step
    };
    void showRun();
    static QString shapeText(const RunRow& row);
    void showRecordingCost();
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
    RunKey costKey_; // run of which cost_ says what recording added
    QString cost_;
    bool askingCost_ = false;
};

/// Shows the facts of a span in the inspectors of the window that contains `from`; empty facts: hides the span.
void explainSpan(const QWidget& from, const std::vector<std::pair<QString, QString>>& facts);
/// Whether an inspector is visible in the window that contains `from`.
bool isSpanExplained(const QWidget& from);

} // namespace kvscope::ui
