//! Where a source file can be changed, and into what.
//!
//! The changes are those that cargo-mutants makes: another value for a whole function, another
//! operator, an operator left out, an arm of a `match` left out, a guard decided beforehand. Unlike
//! there, all of a file are put into it at once, each behind a question for its number, and it is
//! compiled once ([`Instrumented`]).

use proc_macro2::Span;
use std::ops::Range;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, ExprLit, Lit, Meta, ReturnType, Stmt, Token, Type, UnOp};

/// The function that instrumented code calls with a mutant's number.
pub const ASK: &str = "crate::__mutant_is";

/// One change.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// The change, for people.
    pub what: String,
    /// The function that it is in.
    pub function: String,
}

/// A place with its changes.
struct Site {
    at: Range<usize>,
    kind: Kind,
}

enum Kind {
    /// An expression, and what may stand for it: number of the mutant, text.
    Instead(Vec<(usize, String)>),
    /// Statements before all others of a function.
    First(Vec<(usize, String)>),
    /// An arm's guard, which is added, or is about one that is there.
    Guard(usize),
}

/// A file's text with all its mutants.
pub struct Instrumented {
    /// The text.
    pub text: String,
    /// Which bytes of it are there for which mutants. The smallest piece that has an error of the
    /// compiler's is to blame.
    pub pieces: Vec<(Range<usize>, Vec<usize>)>,
}

/// The mutants of a file.
pub struct File {
    text: String,
    /// All, by number.
    pub mutants: Vec<Mutant>,
    /// Names of the modules in other files that only tests have.
    pub test_modules: Vec<String>,
    sites: Vec<Site>,
}

impl File {
    /// Looks for the mutants of `text`.
    pub fn read(text: String) -> Result<Self, String> {
        let parsed = syn::parse_file(&text).map_err(|e| {
            let at = e.span().start();
            format!("line {}, column {}: {e}", at.line, at.column + 1)
        })?;
        let mut search = Search {
            text: &text,
            mutants: Vec::new(),
            test_modules: Vec::new(),
            sites: Vec::new(),
            within: Vec::new(),
        };
        search.visit_file(&parsed);
        let Search {
            mutants,
            test_modules,
            sites,
            ..
        } = search;
        Ok(Self {
            text,
            mutants,
            test_modules,
            sites,
        })
    }

    /// Returns the text with the mutants for which `id` has a number.
    pub fn instrument(&self, id: impl Fn(usize) -> Option<u32>) -> Instrumented {
        let mut edits = Vec::new();
        for site in &self.sites {
            site.edits(&id, &mut edits);
        }
        // At one place: ends before beginnings, of those the inner one first, of these the outer.
        edits.sort_by_key(|edit| {
            let site = edit.site as i64;
            let site = if edit.begins { site } else { -site };
            (edit.at, edit.begins, edit.order, site)
        });
        let mut out = Instrumented {
            text: String::with_capacity(self.text.len() * 2),
            pieces: Vec::new(),
        };
        let mut open: Vec<(usize, usize, Vec<usize>)> = Vec::new();
        let mut copied = 0;
        for edit in edits {
            out.text.push_str(&self.text[copied..edit.at]);
            copied = edit.at;
            if edit.begins {
                let all = edit.parts.iter().filter_map(|part| part.1).collect();
                open.push((edit.site, out.text.len(), all));
            }
            for (part, mutant) in edit.parts {
                let start = out.text.len();
                out.text.push_str(&part);
                if let Some(mutant) = mutant {
                    out.pieces.push((start..out.text.len(), vec![mutant]));
                }
            }
            if let Some(at) = open
                .iter()
                .rposition(|open| open.0 == edit.site && edit.ends)
            {
                let (_, start, all) = open.remove(at);
                out.pieces.push((start..out.text.len(), all));
            }
        }
        out.text.push_str(&self.text[copied..]);
        out
    }
}

/// Text that is put in.
struct Edit {
    at: usize,
    begins: bool,
    ends: bool,
    /// Among those at one place.
    order: i64,
    /// The site that it belongs to.
    site: usize,
    /// With the mutant that each is for.
    parts: Vec<(String, Option<usize>)>,
}

impl Site {
    fn edits(&self, id: &impl Fn(usize) -> Option<u32>, edits: &mut Vec<Edit>) {
        let length = self.at.len() as i64;
        let site = edits.len();
        let edit = |at, begins, ends, order, parts| Edit {
            at,
            begins,
            ends,
            order,
            site,
            parts,
        };
        let asked = |mutants: &[(usize, String)]| -> Vec<(u32, usize, String)> {
            let all = mutants.iter();
            all.filter_map(|(n, text)| Some((id(*n)?, *n, text.clone())))
                .collect()
        };
        match &self.kind {
            Kind::Instead(mutants) => {
                let asked = asked(mutants);
                if asked.is_empty() {
                    return;
                }
                let mut parts = vec![("(".to_string(), None)];
                for (id, n, text) in asked {
                    parts.push((format!("if {ASK}({id}) {{ {text} }} else "), Some(n)));
                }
                parts.push(("{ ".into(), None));
                let end = vec![(" })".to_string(), None)];
                edits.push(edit(self.at.start, true, false, -length, parts));
                edits.push(edit(self.at.end, false, true, length, end));
            }
            Kind::First(mutants) => {
                let parts: Vec<_> = asked(mutants)
                    .into_iter()
                    .map(|(id, n, text)| (format!(" if {ASK}({id}) {{ {text} }}"), Some(n)))
                    .collect();
                if !parts.is_empty() {
                    edits.push(edit(self.at.end, true, true, i64::MIN, parts));
                }
            }
            Kind::Guard(mutant) => {
                let Some(id) = id(*mutant) else { return };
                let start = (format!(" if !{ASK}({id})"), Some(*mutant));
                if self.at.is_empty() {
                    edits.push(edit(self.at.start, true, true, i64::MIN, vec![start]));
                    return;
                }
                let start = (format!("!{ASK}({id}) && ("), Some(*mutant));
                let end = vec![(")".to_string(), None)];
                edits.push(edit(self.at.start, true, false, -length - 1, vec![start]));
                edits.push(edit(self.at.end, false, true, length + 1, end));
            }
        }
    }
}

struct Search<'a> {
    text: &'a str,
    mutants: Vec<Mutant>,
    test_modules: Vec<String>,
    sites: Vec<Site>,
    /// Names of the functions that it is in.
    within: Vec<String>,
}

impl Search<'_> {
    fn mutant(&mut self, span: Span, what: String) -> usize {
        let at = span.start();
        self.mutants.push(Mutant {
            line: at.line,
            column: at.column + 1,
            what,
            function: self.within.join("::"),
        });
        self.mutants.len() - 1
    }

    fn source(&self, node: &impl Spanned) -> &str {
        &self.text[node.span().byte_range()]
    }

    fn function(&mut self, name: &str, output: &ReturnType, block: &Block) {
        self.within.push(name.to_string());
        let values = match output {
            ReturnType::Default if block.stmts.is_empty() => Vec::new(),
            ReturnType::Default => vec!["()".to_string()],
            ReturnType::Type(_, of) => values(of),
        };
        let body = self.text[block.span().byte_range()].replace(char::is_whitespace, "");
        let mut first = Vec::new();
        for value in values {
            // Nothing is changed by what is there already.
            if body == format!("{{{}}}", value.replace(' ', "")) {
                continue;
            }
            let n = self.mutant(block.span(), format!("replace {name} with {value}"));
            first.push((n, format!("return {value};")));
        }
        let open = block.brace_token.span.open().byte_range();
        self.sites.push(Site {
            at: open,
            kind: Kind::First(first),
        });
        visit::visit_block(self, block);
        self.within.pop();
    }

    fn binary(&mut self, whole: &syn::ExprBinary) {
        let (others, name): (&[&str], _) = match whole.op {
            BinOp::Eq(_) => (&["!="], "=="),
            BinOp::Ne(_) => (&["=="], "!="),
            BinOp::And(_) => (&["||"], "&&"),
            BinOp::Or(_) => (&["&&"], "||"),
            BinOp::Lt(_) => (&["==", ">", "<="], "<"),
            BinOp::Gt(_) => (&["==", "<", ">="], ">"),
            BinOp::Le(_) => (&[">", "<"], "<="),
            BinOp::Ge(_) => (&["<", ">"], ">="),
            BinOp::Add(_) => (&["-", "*"], "+"),
            BinOp::Sub(_) => (&["+", "/"], "-"),
            BinOp::Mul(_) => (&["+", "/"], "*"),
            BinOp::Div(_) => (&["%", "*"], "/"),
            BinOp::Rem(_) => (&["/", "+"], "%"),
            BinOp::Shl(_) => (&[">>"], "<<"),
            BinOp::Shr(_) => (&["<<"], ">>"),
            BinOp::BitAnd(_) => (&["|", "^"], "&"),
            BinOp::BitOr(_) => (&["&", "^"], "|"),
            BinOp::BitXor(_) => (&["|", "&"], "^"),
            BinOp::AddAssign(_) => (&["-=", "*="], "+="),
            BinOp::SubAssign(_) => (&["+=", "/="], "-="),
            BinOp::MulAssign(_) => (&["+=", "/="], "*="),
            BinOp::DivAssign(_) => (&["%=", "*="], "/="),
            BinOp::RemAssign(_) => (&["/=", "+="], "%="),
            BinOp::ShlAssign(_) => (&[">>="], "<<="),
            BinOp::ShrAssign(_) => (&["<<="], ">>="),
            BinOp::BitAndAssign(_) => (&["|=", "^="], "&="),
            BinOp::BitOrAssign(_) => (&["&=", "^="], "|="),
            BinOp::BitXorAssign(_) => (&["|=", "&="], "^="),
            _ => (&[], ""),
        };
        let mut instead = Vec::new();
        for other in others {
            let n = self.mutant(whole.op.span(), format!("replace {name} with {other}"));
            let (left, right) = (self.source(&whole.left), self.source(&whole.right));
            instead.push((n, format!("{left} {other} {right}")));
        }
        self.sites.push(Site {
            at: whole.span().byte_range(),
            kind: Kind::Instead(instead),
        });
    }
}

/// Values of a type, each of which could be returned.
fn values(of: &Type) -> Vec<String> {
    let each = |of: Vec<String>, wrap: &str| -> Vec<String> {
        of.into_iter().map(|v| format!("{wrap}({v})")).collect()
    };
    match of {
        Type::Paren(of) => values(&of.elem),
        Type::Never(_) | Type::ImplTrait(_) | Type::Ptr(_) | Type::BareFn(_) => Vec::new(),
        Type::Tuple(of) if of.elems.is_empty() => vec!["()".into()],
        Type::Tuple(of) => {
            let firsts: Option<Vec<_>> = (of.elems.iter())
                .map(|of| values(of).into_iter().next())
                .collect();
            let firsts = firsts.into_iter();
            firsts.map(|all| format!("({})", all.join(", "))).collect()
        }
        Type::Reference(of) => match &*of.elem {
            Type::Slice(_) if of.mutability.is_none() => vec!["&[]".into()],
            Type::Path(path) if path.path.is_ident("str") => {
                vec!["\"\"".into(), "\"xyzzy\"".into()]
            }
            _ => Vec::new(),
        },
        Type::Path(of) => {
            let Some(last) = of.path.segments.last() else {
                return Vec::new();
            };
            let argument = || -> Vec<String> {
                let syn::PathArguments::AngleBracketed(given) = &last.arguments else {
                    return vec!["Default::default()".into()];
                };
                let types = given.args.iter().filter_map(|given| match given {
                    syn::GenericArgument::Type(of) => Some(of),
                    _ => None,
                });
                types.take(1).flat_map(values).collect()
            };
            match last.ident.to_string().as_str() {
                "bool" => vec!["true".into(), "false".into()],
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => vec!["0".into(), "1".into()],
                "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => {
                    vec!["0".into(), "1".into(), "-1".into()]
                }
                "f32" | "f64" => vec!["0.0".into(), "1.0".into()],
                "String" => vec!["String::new()".into(), "\"xyzzy\".into()".into()],
                "Vec" => vec!["Vec::new()".into()],
                "Option" => {
                    let mut all = vec!["None".to_string()];
                    all.extend(each(argument(), "Some"));
                    all
                }
                "Result" => each(argument(), "Ok"),
                "Self" => Vec::new(),
                _ => vec!["Default::default()".into()],
            }
        }
        _ => vec!["Default::default()".into()],
    }
}

/// True for what the tested library does not have: only tests, another processor, another tool.
/// Features count as chosen.
fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("test")
            || path.is_ident("cfg")
                && (attribute.parse_args::<Meta>()).is_ok_and(|meta| !applies(&meta))
    })
}

/// Decides what `cfg` asks.
fn applies(of: &Meta) -> bool {
    let value = |given: &syn::MetaNameValue| match &given.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => text.value(),
        _ => String::new(),
    };
    match of {
        Meta::Path(path) => !["test", "doctest", "miri"]
            .iter()
            .any(|name| path.is_ident(name)),
        Meta::NameValue(given) if given.path.is_ident("target_arch") => {
            value(given) == std::env::consts::ARCH
        }
        Meta::NameValue(_) => true,
        Meta::List(list) => {
            let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            let inner = inner.unwrap_or_default();
            match list.path.get_ident().map(ToString::to_string).as_deref() {
                Some("not") => !inner.iter().all(applies),
                Some("any") => inner.iter().any(applies),
                _ => inner.iter().all(applies),
            }
        }
    }
}

/// True if an expression is a chain with a `let`, which can stand in conditions only.
fn has_let(of: &Expr) -> bool {
    match of {
        Expr::Let(_) => true,
        Expr::Binary(of) => has_let(&of.left) || has_let(&of.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_item_fn(&mut self, of: &'ast syn::ItemFn) {
        if !is_left_out(&of.attrs) && of.sig.constness.is_none() {
            self.function(&of.sig.ident.to_string(), &of.sig.output, &of.block);
        }
    }

    fn visit_impl_item_fn(&mut self, of: &'ast syn::ImplItemFn) {
        if !is_left_out(&of.attrs) && of.sig.constness.is_none() {
            self.function(&of.sig.ident.to_string(), &of.sig.output, &of.block);
        }
    }

    fn visit_trait_item_fn(&mut self, of: &'ast syn::TraitItemFn) {
        if let Some(block) = &of.default {
            self.function(&of.sig.ident.to_string(), &of.sig.output, block);
        }
    }

    fn visit_item_mod(&mut self, of: &'ast syn::ItemMod) {
        if !is_left_out(&of.attrs) {
            visit::visit_item_mod(self, of);
        } else if of.content.is_none() {
            self.test_modules.push(of.ident.to_string());
        }
    }

    fn visit_item_impl(&mut self, of: &'ast syn::ItemImpl) {
        // Debug output is for programmers; no user sees it.
        let prints = (of.trait_.as_ref())
            .is_some_and(|(_, path, _)| path.segments.last().is_some_and(|s| s.ident == "Debug"));
        if !is_left_out(&of.attrs) && !prints {
            let name = self.source(&of.self_ty).to_string();
            self.within.push(name);
            visit::visit_item_impl(self, of);
            self.within.pop();
        }
    }

    fn visit_stmt(&mut self, of: &'ast Stmt) {
        let attributes = match of {
            Stmt::Local(of) => &of.attrs[..],
            Stmt::Expr(Expr::Block(of), _) => &of.attrs,
            Stmt::Expr(Expr::Call(of), _) => &of.attrs,
            Stmt::Expr(Expr::If(of), _) => &of.attrs,
            Stmt::Expr(Expr::MethodCall(of), _) => &of.attrs,
            Stmt::Expr(Expr::Unsafe(of), _) => &of.attrs,
            _ => &[],
        };
        if !is_left_out(attributes) {
            visit::visit_stmt(self, of);
        }
    }

    // Constants are computed before anything can be asked; patterns and types hold constants.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_expr_repeat(&mut self, of: &'ast syn::ExprRepeat) {
        self.visit_expr(&of.expr);
    }

    fn visit_expr_binary(&mut self, of: &'ast syn::ExprBinary) {
        if !has_let(&of.left) && !has_let(&of.right) {
            self.binary(of);
        }
        visit::visit_expr_binary(self, of);
    }

    fn visit_expr_unary(&mut self, of: &'ast syn::ExprUnary) {
        let name = match of.op {
            UnOp::Not(_) => "!",
            UnOp::Neg(_) => "-",
            _ => "",
        };
        if !name.is_empty() {
            let n = self.mutant(of.op.span(), format!("delete {name}"));
            let operand = self.source(&of.expr).to_string();
            self.sites.push(Site {
                at: of.span().byte_range(),
                kind: Kind::Instead(vec![(n, operand)]),
            });
        }
        visit::visit_expr_unary(self, of);
    }

    fn visit_expr_match(&mut self, of: &'ast syn::ExprMatch) {
        let takes_all = |arm: &syn::Arm| {
            arm.guard.is_none()
                && match &arm.pat {
                    syn::Pat::Wild(_) => true,
                    syn::Pat::Ident(ident) => {
                        let name = ident.ident.to_string();
                        ident.subpat.is_none() && name.starts_with(char::is_lowercase)
                    }
                    _ => false,
                }
        };
        let has_rest = of.arms.iter().any(takes_all);
        for arm in &of.arms {
            if has_rest && !takes_all(arm) {
                let pattern = self.source(&arm.pat);
                let pattern = pattern.split_whitespace().collect::<Vec<_>>().join(" ");
                let n = self.mutant(arm.pat.span(), format!("delete the arm {pattern}"));
                let at = match &arm.guard {
                    None => {
                        let end = arm.pat.span().byte_range().end;
                        Some(end..end)
                    }
                    Some((_, guard)) => (!has_let(guard)).then(|| guard.span().byte_range()),
                };
                let kind = Kind::Guard(n);
                self.sites.extend(at.map(|at| Site { at, kind }));
            }
            if let Some((_, guard)) = &arm.guard
                && !has_let(guard)
            {
                let decided = ["true", "false"].map(|value| {
                    let what = format!("replace a guard with {value}");
                    (self.mutant(guard.span(), what), value.to_string())
                });
                self.sites.push(Site {
                    at: guard.span().byte_range(),
                    kind: Kind::Instead(decided.into()),
                });
            }
        }
        visit::visit_expr_match(self, of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with all mutants, numbered from 1, and what they are.
    fn all(text: &str) -> (String, Vec<String>) {
        let file = File::read(text.into()).unwrap();
        let whats = file.mutants.iter().map(|m| m.what.clone()).collect();
        (file.instrument(|n| Some(n as u32 + 1)).text, whats)
    }

    /// The text without any mutant.
    fn stripped(text: &str) -> String {
        File::read(text.into()).unwrap().instrument(|_| None).text
    }

    #[test]
    fn operators_nest() {
        let (text, whats) = all("fn f(a: u8, b: u8) { g(a + b == 3); }");
        assert_eq!(
            text,
            "fn f(a: u8, b: u8) { if crate::__mutant_is(1) { return (); } g((if \
             crate::__mutant_is(2) { a + b != 3 } else { (if crate::__mutant_is(3) { a - b } else \
             if crate::__mutant_is(4) { a * b } else { a + b }) == 3 })); }"
        );
        assert_eq!(
            whats,
            [
                "replace f with ()",
                "replace == with !=",
                "replace + with -",
                "replace + with *"
            ]
        );
    }

    #[test]
    fn guards_and_arms() {
        let (text, whats) = all("fn f() -> Self { match x { 1 => a, 2 | 3 if !b => c, _ => d } }");
        assert_eq!(
            text,
            "fn f() -> Self { match x { 1 if !crate::__mutant_is(1) => a, 2 | 3 if \
             !crate::__mutant_is(2) && ((if crate::__mutant_is(3) { true } else if \
             crate::__mutant_is(4) { false } else { (if crate::__mutant_is(5) { b } else { !b }) })) \
             => c, _ => d } }"
        );
        assert_eq!(whats.len(), 5, "{whats:?}");
    }

    #[test]
    fn what_cannot_be_asked_is_left_alone() {
        for text in [
            "const A: u8 = 1 + 2; const fn f() -> u8 { A + 1 }",
            "fn f() -> Self { if let Some(a) = b && let Some(c) = d { [0; A + 1] } }",
            "#[test] fn f() { a + b; } #[cfg(test)] mod tests { fn f() { a + b; } }",
            "#[cfg(any(test, not(feature = \"a\")))] fn f() -> Self { a + b }",
            "fn f() -> Self { #[cfg(target_arch = \"mips\")] { a + b } #[cfg(miri)] let c = a + b; }",
            "fn f() -> Self { assert!(a + b == c) }",
            "impl Debug for A { fn f(&self) -> bool { a + b } }",
        ] {
            assert_eq!(all(text), (text.to_string(), vec![]));
        }
        let text = "fn f() -> Self { if let Some(a) = b && c < d { e } }";
        assert_eq!(all(text).1.len(), 3);
        assert_eq!(stripped(text), text);
    }

    #[test]
    fn values_of_functions() {
        let of = |text: &str| values(&syn::parse_str(text).unwrap());
        assert_eq!(of("bool"), ["true", "false"]);
        assert_eq!(of("Option<u8>"), ["None", "Some(0)", "Some(1)"]);
        assert_eq!(of("Result<(), E>"), ["Ok(())"]);
        assert_eq!(of("io::Result<Vec<u8>>"), ["Ok(Vec::new())"]);
        assert_eq!(of("(u8, bool)"), ["(0, true)"]);
        assert_eq!(of("&[u8]"), ["&[]"]);
        assert!(of("impl Fn()").is_empty() && of("&mut T").is_empty());
    }

    #[test]
    fn pieces_tell_who_is_to_blame() {
        let file = File::read("fn f() -> Self { a + b }".into()).unwrap();
        let made = file.instrument(|n| Some(n as u32 + 1));
        let at = made.text.find("a * b").unwrap();
        let has = made.pieces.iter().filter(|(range, _)| range.contains(&at));
        let smallest = has.min_by_key(|(range, _)| range.len()).unwrap();
        assert_eq!(smallest.1, [1]);
        let at = made.text.find("a + b").unwrap();
        let has = made.pieces.iter().filter(|(range, _)| range.contains(&at));
        assert_eq!(has.min_by_key(|(range, _)| range.len()).unwrap().1, [0, 1]);
    }
}
