// The section "Advanced" of the session form: sampling, the memory tiers, the link between them, and what is recorded.
#pragma once

#include "ui/session/session_controller.h"

#include <QObject>
#include <QVariantMap>

class QCheckBox;
class QComboBox;
class QDoubleSpinBox;
class QFormLayout;
class QSpinBox;
class QVBoxLayout;

namespace kvscope::ui {

class Section;

class SessionAdvanced final : public QObject {
    Q_OBJECT
public:
    /// Adds the section to the form.
    SessionAdvanced(QVBoxLayout* layout, QObject* parent);

    bool offloads() const;
    bool measuresOracle() const;
    int deviceSlots() const; // 0: as the budget
    /// Sets the fields of a session that this section has.
    void read(SessionOptions& options) const;
    void read(SessionRequest& request) const;

    /// As SessionForm has them: the values of this section, and those that a session's options stand for.
    QVariantMap values() const;
    void setValues(const QVariantMap& values);
    QVariantMap valuesOf(const SessionOptions& options) const;

    /// A GPU measures its link and can record more.
    void setBackend(Backend backend);
    /// Whether blocks go through the device tier.
    void setPooled(bool pooled);
    /// Enables and shows what the present values allow.
    void refresh();

signals:
    void changed();

private:
    void addSamplingRows(QFormLayout* form);
    void addTierRows(QFormLayout* form);
    void addLinkRows(QFormLayout* form);
    void addRecordRows(QFormLayout* form);
    void showRecordGpu();

    Section* section_ = nullptr;
    bool gpu_ = false;
    QDoubleSpinBox *temperature_ = nullptr, *topP_ = nullptr, *linkGbps_ = nullptr;
    QSpinBox *topK_ = nullptr, *seed_ = nullptr, *deviceSlots_ = nullptr;
    QComboBox *kvType_ = nullptr, *cachePolicy_ = nullptr, *link_ = nullptr, *level_ = nullptr,
              *pcieCounting_ = nullptr;
    QCheckBox *stopAtEos_ = nullptr, *offload_ = nullptr, *oracle_ = nullptr, *recordGpu_ = nullptr,
              *recordCalls_ = nullptr;
};

} // namespace kvscope::ui
