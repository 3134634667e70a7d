// The column beside the what-if plots: sliders for cache, link and loading ahead, and the answer's numbers.
#pragma once

#include "base/indexed.h"
#include "ui/views/cache/cache_numbers.h"

#include <QScrollArea>

class QCheckBox;
class QComboBox;
class QLabel;
class QPushButton;
class QTableWidget;
class QVBoxLayout;

namespace kvscope::ui {

class SliderField;

class CacheControls final : public QScrollArea {
    Q_OBJECT
public:
    explicit CacheControls(QWidget* parent = nullptr);

    /// Sets the ranges and the recorded values of another run. Emits nothing.
    void setRun(const WhatIf& whatIf, const WhatIfQuestion& question);
    WhatIfQuestion question() const;
    /// Sets all parts of the question and emits changed once if any of them is another one.
    void setQuestion(const WhatIfQuestion& question);
    bool sharedPool() const;
    void setSharedPool(bool shared); // emits nothing

    void setNumbers(const std::vector<CacheNumber>& numbers);
    /// What the recording says about the replay, e.g. "Reproduces the recording: yes".
    void setReproduction(const QString& text, bool good);
    QSize minimumSizeHint() const override;

signals:
    void changed();
    void sharedPoolChanged(bool shared);

protected:
    QSize sizeHint() const override;
    void changeEvent(QEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;

private:
    void makePolicy(QVBoxLayout* column);
    void makeSliders(QVBoxLayout* column);
    void makeTable(QVBoxLayout* column);
    void fillTable();
    void enableParts();

    QComboBox* policy_ = nullptr;
    SliderField *slots_ = nullptr, *bandwidth_ = nullptr, *latency_ = nullptr, *ahead_ = nullptr, *accuracy_ = nullptr;
    QCheckBox* shared_ = nullptr;
    QPushButton* asRecorded_ = nullptr;
    QTableWidget* table_ = nullptr;
    QLabel* reproduction_ = nullptr;
    WhatIfQuestion recorded_;
    Numbered<CacheNumber> numbers_;
    QString reproductionText_;
    bool good_ = true, quiet_ = false;
};

} // namespace kvscope::ui
