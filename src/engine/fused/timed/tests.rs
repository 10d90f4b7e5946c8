use super::*;
use crate::engine::traffic::Measured;

/// A backend whose clock, if it has one, is at `now`; each kernel takes two seconds, and waiting for it is counted.
struct Clocked {
    has_clock: bool,
    now: usize,
    waits: usize,
}

macro_rules! kernels {
    ($($name:ident($($argument:ty),*);)*) => {
        $(fn $name(&mut self, $(_: $argument),*) {
            self.now += 2;
        })*
    };
}

impl Backend for Clocked {
    kernels! {
        upload(&Batch, f32);
        upload_next(&[Next]);
        upload_packed(&Packed);
        gather(Gather, Span, Span, usize);
        refresh_low();
        embed(Span, Span, Span);
        embed_next(Span, Span, Span);
        embed_backward(Span, Option<Span>, Span, Option<Span>);
        add_up_biases(&[Span], Span);
        drop_out(Span, Site);
        layernorm(Span, Norm, Span);
        residual_layernorm(ResidualLayerNorm);
        layernorm_again(Span, Norm, Span);
        layernorm_backward(LayerNormBackward);
        linear(Span, Linear, Span, Epilogue);
        linear_backward_weight(WeightGradient);
        linear_backward_input(InputGradient);
        gelu_again(Span, Span);
        attention(Span, Span, Span, AttentionShape, Option<Site>);
        attention_next(NextAttention);
        attention_backward(AttentionBackward);
        head(Span, Span, Span, usize);
        cross_entropy(CrossEntropy);
        head_backward(HeadBackward);
        add_loss(Span);
        reduce(Span);
        reduced();
        measure(&OptimizerStep);
        adamw(AdamWTensors, &Constants);
        all_gather_parameters();
        discard();
    }

    fn muon(&mut self) -> &mut dyn MuonKernels {
        self
    }

    fn wait(&mut self) {
        self.waits += 1;
    }

    fn download(&mut self, _: Span) -> Result<Cow<'_, [f32]>, EngineError> {
        Ok(Cow::Borrowed(&[]))
    }

    fn write(&mut self, _: Span, _: &[f32]) -> Result<(), EngineError> {
        Ok(())
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        Ok(0.0)
    }

    fn outcome(&mut self) -> Result<StepOutcome, EngineError> {
        Ok(StepOutcome { loss: 0.0, squares: 0.0, applied: true })
    }

    fn mark(&mut self) -> Option<Mark> {
        self.has_clock.then_some(Mark(self.now))
    }

    fn measured(&mut self, pairs: &[(Mark, Mark)]) -> Result<Measured, EngineError> {
        let seconds = pairs.iter().map(|(begin, end)| (end.0 - begin.0) as f64).collect();
        Ok(Measured { seconds, launches: Vec::new() })
    }
}

impl MuonKernels for Clocked {
    kernels! {
        muon_momentum(MuonMomentum, &muon::Constants);
        muon_normalize(Span, MuonPrecision);
        muon_product(MuonProduct, MuonPrecision);
        muon_apply(MuonUpdate, &muon::Constants);
    }
}

#[test]
fn a_device_with_a_clock_is_waited_for_only_where_ranks_add_up() {
    let mut timed = Timed::new(Clocked { has_clock: true, now: 0, waits: 0 });
    for _ in 0..3 {
        timed.discard();
    }
    timed.all_gather_parameters();
    assert_eq!(timed.inner_mut().waits, 0);
    timed.reduced();
    assert_eq!(timed.inner_mut().waits, 2, "before the clock of the host starts, and before it stops");
    let times = timed.take().expect("times").phases;
    assert_eq!(times[&Phase::Optimizer], Duration::from_secs(8));
    assert!(times[&Phase::Communication] < Duration::from_secs(1), "by the clock of the host");
    assert!(timed.take().expect("times").phases.is_empty(), "all was taken");
}

#[test]
fn a_device_without_a_clock_is_waited_for_after_each_kernel() {
    let mut timed = Timed::new(Clocked { has_clock: false, now: 0, waits: 0 });
    timed.discard();
    timed.discard();
    assert!(timed.inner_mut().waits >= 2);
    assert_eq!(timed.take().expect("times").phases.len(), 1);
}
