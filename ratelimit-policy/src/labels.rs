//! The names of an enum's variants, which are one table.

/// Gives an enum `ALL`, its variants in this order, of which the first is the default of a choice; and `label`, the name
/// of each in flags, files, JSON and metrics.
#[macro_export]
macro_rules! labels {
    ($visible:vis $of:ident { $($variant:ident => $label:literal),+ $(,)? }) => {
        impl $of {
            /// All of them.
            $visible const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            /// Its name in flags, files, JSON and metrics.
            $visible const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }
    };
}
