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

    /// Rebuilds the editors. `defaults` are the declared ones overridden by the checkpoint's.
    void setParameters(const std::vector<Parameter>& parameters, const ParameterValues& defaults);
    /// Tab goes from `before` through the editors: they are made later than what lies below them.
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
