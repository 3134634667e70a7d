// The choice between one sequence of a batch and all of them, and how it is said under a plot.
#pragma once

#include <QComboBox>
#include <QCoreApplication>
#include <QSignalBlocker>

namespace kvscope::ui {

/// Fills the picker with "All" and a row for each of `count` sequences. What was chosen stays chosen if it is still
/// there.
inline void fillSequences(QComboBox& picker, int count) {
    if (picker.count() == count + 1) return;
    const QSignalBlocker quiet(&picker);
    const int before = picker.currentIndex();
    picker.clear();
    picker.addItem(QCoreApplication::translate("Views", "All"), -1);
    for (int i = 0; i < count; ++i) picker.addItem(QString::number(i), i);
    picker.setCurrentIndex(before > 0 && before <= count ? before : 0);
    picker.setEnabled(count > 1);
}

/// The chosen sequence; -1: all of them.
inline int chosenSequence(const QComboBox& picker) {
    return picker.currentIndex() > 0 ? picker.currentData().toInt() : -1;
}

/// "All 4 sequences of the batch.", "Sequence 2 of 4 only."; empty where there is no batch.
inline QString sequenceNote(const QComboBox& picker) {
    const int count = picker.count() - 1, chosen = chosenSequence(picker);
    if (count < 2) return {};
    return chosen < 0 ? QCoreApplication::translate("Views", "All %1 sequences of the batch.").arg(count)
                      : QCoreApplication::translate("Views", "Only sequence %1 of %2 (counted from 0).")
                            .arg(chosen)
                            .arg(count);
}

} // namespace kvscope::ui
