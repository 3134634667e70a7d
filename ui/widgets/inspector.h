// The panel that shows facts about what is selected: the chosen span of the timeline, the run, the step or the range of
// steps at the cursor, and the block at the cursor with its text.
#pragma once

#include "profiler/read/trace_reader.h"

#include <QHash>
#include <QScrollArea>

#include <optional>
#include <utility>
#include <vector>

class QGridLayout;
class QLabel;
class QPlainTextEdit;

namespace kvscope::ui {

class MutedLabel;
class Section;
class Workspace;

/// A table of rows with a name and a value. A name that has a definition is a link to it.
class FactTable final : public QWidget {
    Q_OBJECT
public:
    explicit FactTable(QWidget* parent = nullptr);
    /// Adds a row or changes its value. A row whose value is empty is hidden.
    void set(const QString& name, const QString& value, const char* definition = nullptr);
    QString value(const QString& name) const;
    /// Hides at its end all rows that were not set during its life. The rows that stay are not laid out anew.
    class Update {
    public:
        explicit Update(FactTable* table);
        ~Update();
        Update(const Update&) = delete;
        Update& operator=(const Update&) = delete;

    private:
        FactTable* table_;
    };

signals:
    void definitionRequested(const QString& id);

protected:
    void changeEvent(QEvent* event) override;

private:
    struct Row {
        QLabel *name, *value;
        QString definition; // id of the definition; empty: none
        bool set = false;   // whether the running Update has set the row
    };
    static void writeName(const QString& name, const Row& row);
    QGridLayout* grid_;
    QHash<QString, Row> rows_;
};

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

/// Shows the facts of a span in the inspectors of the window that contains `from`; empty facts: hides the span.
void explainSpan(const QWidget& from, const std::vector<std::pair<QString, QString>>& facts);
/// Whether an inspector is visible in the window that contains `from`.
bool isSpanExplained(const QWidget& from);

} // namespace kvscope::ui
