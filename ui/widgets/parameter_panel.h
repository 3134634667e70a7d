// The part of the session form that has one editor for each declared parameter of the chosen method.
#pragma once

#include "core/select/method.h"

#include <QVariantMap>
#include <QWidget>

#include <string>
#include <utility>
#include <vector>

class QGridLayout;
class QToolButton;

namespace kvscope::ui {

/// The editors are named "param_<key>". A reset button appears beside an editor whose value differs from the default.
class ParameterPanel final : public QWidget {
    Q_OBJECT
public:
    explicit ParameterPanel(QWidget* parent = nullptr);

    /// Replaces the editors by those of `method`. `defaults`: the declared defaults with those of the checkpoint on
    /// top.
    void setMethod(const MethodEntry& method, const ParameterValues& defaults);
    /// Sets the order in which Tab visits the editors: from `before` through all of them. Without that, the editors
    /// would come last, because they are made later than the widgets below them.
    void tabAfter(QWidget* before);
    /// The values that differ from the defaults, in the order of declaration, as `kvscope-cli run --set` takes them.
    std::vector<std::pair<std::string, std::string>> settings() const;
    void setValue(const std::string& key, const std::string& value); // ignores unknown keys and bad values
    void resetAll();

signals:
    void changed();

private:
    struct Row {
        const Parameter* parameter = nullptr;
        std::string defaultValue;
        QWidget* editor = nullptr;
        QToolButton* reset = nullptr;
    };
    Row makeRow(const Parameter& parameter, const std::string& defaultValue);
    static std::string valueOf(const Row& row);
    static void setValueOf(const Row& row, const std::string& value);
    void edited();

    QGridLayout* grid_;
    std::vector<Parameter> declared_; // the rows point to its elements
    std::vector<Row> rows_;
    bool loading_ = false;
};

} // namespace kvscope::ui
