// The choice of colour maps: each shown as a bar, tried on the plots while the pointer or the keys rest on it.
#pragma once

#include <QMenu>
#include <QString>

namespace kvscope::ui {

class ColourMapMenu final : public QMenu {
    Q_OBJECT
public:
    explicit ColourMapMenu(QWidget* parent = nullptr);
    QString sequential() const { return sequential_; }
    QString diverging() const { return diverging_; }
    /// Without a signal: somebody else chose.
    void setChosen(const QString& sequential, const QString& diverging);

signals:
    void chosen(const QString& sequential, const QString& diverging);
    /// Shown for now; `chosen` follows, or another preview of what was chosen before.
    void preview(const QString& sequential, const QString& diverging);

protected:
    void paintEvent(QPaintEvent* event) override;

private:
    void rebuild();
    QString sequential_, diverging_;
};

} // namespace kvscope::ui
