// CUPTI's parameter structs carry their own size, which tells a library of another version what they hold.
#pragma once

/// A zeroed struct of that type with its size filled in.
#define KVSCOPE_CUPTI_STRUCT(Type)                                                                                     \
    [] {                                                                                                               \
        Type made{};                                                                                                   \
        made.structSize = Type##_STRUCT_SIZE;                                                                          \
        return made;                                                                                                   \
    }()
