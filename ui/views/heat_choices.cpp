#include "ui/views/heat_choices.h"

#include "ui/plots/margins.h"

#include <QComboBox>
#include <QCoreApplication>

namespace kvscope::ui {
namespace {

void addEntry(QComboBox& picker, const char* name, const char* help = nullptr) {
    picker.addItem(QCoreApplication::translate("HeatChoices", name));
    if (help != nullptr)
        picker.setItemData(picker.count() - 1, QCoreApplication::translate("HeatChoices", help), Qt::ToolTipRole);
}

} // namespace

void addAggregates(QComboBox& picker) {
    addEntry(picker, QT_TRANSLATE_NOOP("HeatChoices", "Mean"));
    addEntry(picker, QT_TRANSLATE_NOOP("HeatChoices", "Minimum"));
    addEntry(picker, QT_TRANSLATE_NOOP("HeatChoices", "Maximum"));
}

void addColourRanges(QComboBox& picker) {
    addEntry(picker, QT_TRANSLATE_NOOP("HeatChoices", "Natural range"),
             QT_TRANSLATE_NOOP("HeatChoices", "The metric's own, such as 0 to 1: colours of two runs can be compared"));
    addEntry(picker, QT_TRANSLATE_NOOP("HeatChoices", "Lowest to highest"),
             QT_TRANSLATE_NOOP("HeatChoices", "Of the cells of this run: shows small differences"));
    addEntry(
        picker, QT_TRANSLATE_NOOP("HeatChoices", "Without outliers"),
        QT_TRANSLATE_NOOP("HeatChoices", "First to 99th percentile of the cells: a few that stand out do not count"));
}

void showColourRange(const QCPRange& values, Unit unit, QCPColorScale& bar, Margins& margins) {
    bar.setDataRange(values);
    for (QCPAxis* means : {margins.stepValues(), margins.rowValues()}) {
        means->setRange(values);
        setUnitAxis(means, QCoreApplication::translate("HeatChoices", "Mean"), unit);
        means->ticker()->setTickCount(2);
    }
}

} // namespace kvscope::ui
