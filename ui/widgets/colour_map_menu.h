// The menu of colour maps. It shows each map as a bar. While the pointer or the keyboard is on an entry, the plots show
// that map.
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
    /// Marks these maps as chosen and emits no signal. For a choice that was made elsewhere, e.g. in another window.
    void setChosen(const QString& sequential, const QString& diverging);

signals:
    void chosen(const QString& sequential, const QString& diverging);
    /// The plots show these maps for now. If the user takes an entry, `chosen` follows. When the menu closes, a last
    /// preview with the chosen maps follows.
    void preview(const QString& sequential, const QString& diverging);

protected:
    void paintEvent(QPaintEvent* event) override;

private:
    void rebuild();
    QString sequential_, diverging_;
};

} // namespace kvscope::ui
