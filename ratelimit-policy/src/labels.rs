//! Table of labels for the variants of an enum.

/// Gives an enum the constant `ALL` and the function `label`. `ALL` holds the variants in this order; its first one
/// is the default of a choice. `label` returns a variant's name in flags, files, JSON and metrics.
#[macro_export]
macro_rules! labels {
    ($visible:vis $of:ident { $($variant:ident => $label:literal),+ $(,)? }) => {
        impl $of {
            /// All variants, in the order of the table.
            $visible const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// Returns the name in flags, files, JSON and metrics.
            $visible const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }
    };
}
