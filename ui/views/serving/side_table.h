// A table beside the plot of a view, whose rows are chosen.
#pragma once

#include <QStringList>
#include <QTableWidget>

#include <vector>

namespace kvscope::ui {

class SideTable : public QTableWidget {
    Q_OBJECT
public:
    explicit SideTable(const QStringList& columns, QWidget* parent = nullptr);

    /// Replaces the rows, each of which has as many texts as there are columns. textColumn: stands left, all others
    /// right, because they are numbers.
    void setTexts(const std::vector<QStringList>& rows, int textColumn);
    /// Takes the size that suits a view of this size: beside the plot where the view is wide, below it else.
    void fit(QSize view);

signals:
    void rowClicked(int row);
};

} // namespace kvscope::ui
