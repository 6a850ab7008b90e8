//! Addresses, offsets and identities of files as types, so that a file offset is never used as an address.

use core::fmt;
use core::ops::{Add, Sub};

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// This address moved by a signed distance, wrapping as hardware does.
            #[must_use]
            pub const fn offset(self, by: i64) -> Self {
                Self(self.0.wrapping_add_signed(by))
            }
            /// Signed distance in bytes from `other` to `self`.
            #[must_use]
            pub const fn distance_from(self, other: Self) -> i64 {
                self.0.wrapping_sub(other.0).cast_signed()
            }
        }
        impl Add<u64> for $name {
            type Output = Self;
            fn add(self, by: u64) -> Self {
                Self(self.0.wrapping_add(by))
            }
        }
        impl Sub<u64> for $name {
            type Output = Self;
            fn sub(self, by: u64) -> Self {
                Self(self.0.wrapping_sub(by))
            }
        }
        impl Sub for $name {
            type Output = u64;
            fn sub(self, other: Self) -> u64 {
                self.0.wrapping_sub(other.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address!(
    /// An address in the traced process. Never dereferenced here.
    RemoteAddr
);
address!(
    /// An address as the ELF file states it, before the loader adds the module's bias.
    Svma
);
address!(
    /// A byte offset in a file. (file, offset) names a site across processes.
    FileOffset
);

/// A file's identity. `dev` is the value that `stat` reports (`makedev(major, minor)`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub inode: u64,
}

/// Load bias of a module: `RemoteAddr = Svma + bias`, wrapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bias(pub u64);

impl Bias {
    /// The live address of an address in the ELF file.
    #[must_use]
    pub const fn live(self, svma: Svma) -> RemoteAddr {
        RemoteAddr(svma.0.wrapping_add(self.0))
    }
    /// The address in the ELF file of a live address.
    #[must_use]
    pub const fn stated(self, addr: RemoteAddr) -> Svma {
        Svma(addr.0.wrapping_sub(self.0))
    }
}
