//! The tree of a script, as it was written.
//!
//! In: nothing; the parser makes it. Out: plain data with spans. Invariant: no expression is deeper than
//! [`MAX_DEPTH`], so those that walk it recursively have stack enough. Does not: know types.

use crate::source::Span;

/// How deep an expression may be.
pub(crate) const MAX_DEPTH: u16 = 120;

/// A whole script.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) structs: Vec<StructDef>,
    pub(crate) enums: Vec<EnumDef>,
    pub(crate) settings: Vec<Setting>,
    pub(crate) maps: Vec<MapDef>,
    pub(crate) macros: Vec<MacroDef>,
    pub(crate) probes: Vec<ProbeDef>,
}

/// `struct name { … }` or `union name { … }`.
#[derive(Debug, Clone)]
pub(crate) struct StructDef {
    pub(crate) name: String,
    pub(crate) union: bool,
    pub(crate) packed: bool,
    pub(crate) fields: Vec<FieldDef>,
}

/// A field of a structure. One without a name is a structure whose fields belong to the outer one.
#[derive(Debug, Clone)]
pub(crate) struct FieldDef {
    pub(crate) name: Option<String>,
    pub(crate) ty: TypeName,
    pub(crate) bits: Option<u32>,
}

/// `enum name { A, B = 5 }`.
#[derive(Debug)]
pub(crate) struct EnumDef {
    pub(crate) name: String,
    pub(crate) variants: Vec<(String, i64)>,
}

/// `name = value` in `config = { … }`.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) span: Span,
}

/// `let @name = kind(entries);`.
#[derive(Debug)]
pub(crate) struct MapDef {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) entries: u64,
    pub(crate) span: Span,
}

/// `macro name(params) { … }`.
#[derive(Debug)]
pub(crate) struct MacroDef {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) body: Block,
}

/// A parameter of a macro.
#[derive(Debug)]
pub(crate) enum Param {
    Variable(String),
    Map(String),
    Expr(String),
}

/// Attach points, a predicate, and what is done.
#[derive(Debug)]
pub(crate) struct ProbeDef {
    pub(crate) attach: Vec<(String, Span)>,
    pub(crate) predicate: Option<Expr>,
    pub(crate) body: Block,
}

/// Statements in braces, and perhaps an expression that is the value of all.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub(crate) statements: Vec<Statement>,
    pub(crate) value: Option<Box<Expr>>,
    pub(crate) span: Span,
}

/// One statement.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) kind: StatementKind,
    pub(crate) span: Span,
}

#[derive(Debug, Clone)]
pub(crate) enum StatementKind {
    Let { name: String, ty: Option<TypeOf>, value: Option<Expr>, declared: Span },
    Assign { target: Expr, op: Option<Binary>, value: Expr },
    Expr(Expr),
    Discard(Expr),
    While { condition: Expr, body: Block },
    Unroll { times: Expr, body: Block },
    ForMap { variable: String, map: Expr, body: Block, declared: Span },
    ForRange { variable: String, from: Expr, to: Expr, body: Block, declared: Span },
    Break,
    Continue,
    Return(Option<Expr>),
}

/// One expression.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    pub(crate) span: Span,
    /// How many expressions are inside each other.
    pub(crate) depth: u16,
}

#[derive(Debug, Clone)]
pub(crate) enum ExprKind {
    Int(u64),
    Text(Vec<u8>),
    Bool(bool),
    Name(String),
    Variable(String),
    Map {
        name: String,
        key: Option<Box<Expr>>,
    },
    Positional(usize),
    PositionalCount,
    Call {
        name: String,
        args: Vec<Expr>,
    },
    Unary {
        op: Unary,
        of: Box<Expr>,
    },
    Binary {
        op: Binary,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// `++` and `--`.
    Step {
        of: Box<Expr>,
        up: bool,
        before: bool,
    },
    Field {
        of: Box<Expr>,
        name: String,
    },
    /// `.1` of a tuple.
    Item {
        of: Box<Expr>,
        index: usize,
    },
    Element {
        of: Box<Expr>,
        index: Box<Expr>,
    },
    If {
        condition: Box<Expr>,
        then: Box<Expr>,
        other: Option<Box<Expr>>,
    },
    Block(Block),
    Cast {
        ty: TypeOf,
        of: Box<Expr>,
    },
    AddressOf(Box<Expr>),
    Tuple(Vec<Expr>),
    Record(Vec<(String, Expr)>),
    SizeOf(TypeOf),
    OffsetOf(TypeOf, Vec<String>),
    /// A type where an expression may be: an argument of a macro.
    Type(TypeOf),
}

impl ExprKind {
    /// The depth of the deepest part.
    pub(crate) fn depth(&self) -> u16 {
        let all = |exprs: &[Expr]| exprs.iter().map(|expr| expr.depth).max().unwrap_or(0);
        match self {
            Self::Unary { of, .. } | Self::Step { of, .. } | Self::Field { of, .. } => of.depth,
            Self::Item { of, .. } | Self::AddressOf(of) => of.depth,
            Self::Cast { ty, of } => of.depth.max(ty.depth()),
            Self::Map { key, .. } => key.as_ref().map_or(0, |key| key.depth),
            Self::Binary { left, right, .. } => left.depth.max(right.depth),
            Self::Element { of, index } => of.depth.max(index.depth),
            Self::Call { args, .. } | Self::Tuple(args) => all(args),
            Self::Record(fields) => fields.iter().map(|(_, expr)| expr.depth).max().unwrap_or(0),
            Self::If { condition, then, other } => {
                condition.depth.max(then.depth).max(other.as_ref().map_or(0, |other| other.depth))
            }
            Self::Block(block) => block.depth(),
            Self::SizeOf(ty) | Self::OffsetOf(ty, _) | Self::Type(ty) => ty.depth(),
            Self::Int(_) | Self::Text(_) | Self::Bool(_) | Self::Name(_) => 0,
            Self::Variable(_) | Self::Positional(_) | Self::PositionalCount => 0,
        }
    }
}

impl Block {
    pub(crate) fn depth(&self) -> u16 {
        let inside = self.statements.iter().map(|statement| statement.kind.depth()).max().unwrap_or(0);
        1 + inside.max(self.value.as_ref().map_or(0, |value| value.depth))
    }
}

impl StatementKind {
    fn depth(&self) -> u16 {
        match self {
            Self::Let { value, ty, .. } => {
                let ty = ty.as_ref().map_or(0, TypeOf::depth);
                value.as_ref().map_or(0, |value| value.depth).max(ty)
            }
            Self::Assign { target, value, .. } => target.depth.max(value.depth),
            Self::Expr(expr) | Self::Discard(expr) => expr.depth,
            Self::While { condition: expr, body } | Self::Unroll { times: expr, body } => {
                expr.depth.max(body.depth())
            }
            Self::ForMap { body, .. } => body.depth(),
            Self::ForRange { from, to, body, .. } => from.depth.max(to.depth).max(body.depth()),
            Self::Return(value) => value.as_ref().map_or(0, |value| value.depth),
            Self::Break | Self::Continue => 0,
        }
    }
}

/// A type, or an expression whose type is meant.
#[derive(Debug, Clone)]
pub(crate) enum TypeOf {
    Type(TypeName),
    Expr(Box<Expr>),
}

impl TypeOf {
    fn depth(&self) -> u16 {
        match self {
            Self::Type(name) => name.depth(),
            Self::Expr(expr) => expr.depth,
        }
    }
}

/// A type as it was written.
#[derive(Debug, Clone)]
pub(crate) struct TypeName {
    pub(crate) kind: TypeKind,
    pub(crate) span: Span,
}

#[derive(Debug, Clone)]
pub(crate) enum TypeKind {
    /// `uint64`, `string`, or the parameter of a macro.
    Named(String),
    Struct(String),
    Enum(String),
    Pointer(Box<TypeName>),
    /// Without a number, as long as what is cast.
    Array(Box<TypeName>, Option<u64>),
}

impl TypeName {
    fn depth(&self) -> u16 {
        match &self.kind {
            TypeKind::Pointer(of) | TypeKind::Array(of, _) => 1 + of.depth(),
            _ => 0,
        }
    }
}

/// Operators with one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    Not,
    Invert,
    Negate,
    Deref,
}

impl Unary {
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Not => "!",
            Self::Invert => "~",
            Self::Negate => "-",
            Self::Deref => "dereference",
        }
    }
}

/// Operators with two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Left,
    Right,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Binary {
    /// Each with its sign and how tightly it binds; the longer signs come first.
    pub(crate) const ALL: [(Self, &'static str, u8); 18] = [
        (Self::Or, "||", 1),
        (Self::And, "&&", 2),
        (Self::Equal, "==", 6),
        (Self::Unequal, "!=", 6),
        (Self::Left, "<<", 8),
        (Self::Right, ">>", 8),
        (Self::LessEqual, "<=", 7),
        (Self::GreaterEqual, ">=", 7),
        (Self::BitOr, "|", 3),
        (Self::BitXor, "^", 4),
        (Self::BitAnd, "&", 5),
        (Self::Less, "<", 7),
        (Self::Greater, ">", 7),
        (Self::Add, "+", 9),
        (Self::Subtract, "-", 9),
        (Self::Multiply, "*", 10),
        (Self::Divide, "/", 10),
        (Self::Remainder, "%", 10),
    ];
    pub(crate) fn sign(self) -> &'static str {
        Self::ALL.iter().find(|(op, ..)| *op == self).map_or("", |(_, sign, _)| sign)
    }
    pub(crate) const fn compares(self) -> bool {
        matches!(
            self,
            Self::Equal | Self::Unequal | Self::Less | Self::LessEqual | Self::Greater | Self::GreaterEqual
        )
    }
    pub(crate) const fn is_logical(self) -> bool {
        matches!(self, Self::And | Self::Or)
    }
}
