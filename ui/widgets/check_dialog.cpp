#include "ui/widgets/check_dialog.h"

#include "ui/frame/as_written.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/run_checks.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"

#include <QDialogButtonBox>
#include <QHeaderView>
#include <QTableWidget>
#include <QVBoxLayout>

#include <algorithm>

namespace kvscope::ui {

namespace {

QString latin(std::string_view text) { return QString::fromUtf8(text.data(), qsizetype(text.size())); }

} // namespace

CheckDialog::CheckDialog(const Workspace& workspace, const RunKey& run, const QString& name, QWidget* parent)
    : QDialog(parent), table_(new QTableWidget(0, 3)) {
    const RunCheck& check = *RunChecks::of(workspace).find(run);
    setAttribute(Qt::WA_DeleteOnClose);
    setWindowTitle(tr("Broken rules of %1").arg(name));
    auto* summary = new MutedLabel(violationText(workspace, run) + QLatin1Char(' ') +
                                   tr("%1 of %2 rules could not be tested on this run. kvscope-cli check lists every "
                                      "row; docs/trace-format.md has the rules.")
                                       .arg(check.untested())
                                       .arg(check.rules.size()));
    summary->setObjectName(QStringLiteral("checkSummary"));
    summary->setWordWrap(true);
    table_->setObjectName(QStringLiteral("violations"));
    table_->setAccessibleName(tr("Rows that break a rule"));
    table_->setHorizontalHeaderLabels({tr("Where"), tr("What it says"), tr("Rule")});
    table_->verticalHeader()->hide();
    table_->setEditTriggers(QAbstractItemView::NoEditTriggers);
    table_->setSelectionBehavior(QAbstractItemView::SelectRows);
    table_->setAlternatingRowColors(true);
    table_->setWordWrap(false);
    const auto add = [this](const QString& where, const QString& what, const QString& rule, const QString& id) {
        const int row = table_->rowCount();
        table_->insertRow(row);
        int column = 0;
        for (const QString& text : {where, what, rule}) {
            auto* item = new QTableWidgetItem(text);
            item->setToolTip(asWritten(column == 2 ? QStringLiteral("%1 (%2)").arg(rule, id) : text));
            table_->setItem(row, column++, item);
        }
    };
    for (const RuleResult& rule : check.rules) {
        std::int64_t shown = 0;
        for (const Violation& each : check.examples) {
            if (each.rule != rule.id) continue;
            const QString where = !each.where.empty() ? QString::fromStdString(each.where)
                                  : each.run > 0      ? tr("the run")
                                                      : tr("the file");
            add(where, QString::fromStdString(each.what), latin(rule.says), latin(rule.id));
            ++shown;
        }
        if (rule.violations > shown)
            add(tr("%1 more").arg(formatCount(rule.violations - shown)), QString(), latin(rule.says), latin(rule.id));
    }
    giveTableMenu(*table_);
    table_->resizeColumnsToContents();
    table_->setColumnWidth(0, std::min(table_->columnWidth(0), 320));
    table_->setColumnWidth(1, std::min(table_->columnWidth(1), 380));
    table_->horizontalHeader()->setStretchLastSection(true);
    auto* buttons = new QDialogButtonBox(QDialogButtonBox::Close);
    connect(buttons, &QDialogButtonBox::rejected, this, &QDialog::close);
    auto* layout = new QVBoxLayout(this);
    layout->addWidget(summary);
    layout->addWidget(table_, 1);
    layout->addWidget(buttons);
    resizeOnScreen(*this, {940, 420});
    table_->setFocus();
}

} // namespace kvscope::ui
