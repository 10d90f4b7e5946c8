//! How a launcher tells a process which rank it is: the environment variables of `torchrun`, `mpirun` and
//! `srun`.

use crate::wording::count;

/// The rank that a launcher gave this process, and how to find the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The launcher, and the variable that holds the number of ranks; for people.
    pub launcher: String,
    /// This rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// This rank among those on this machine.
    pub local_rank: usize,
    /// The number of ranks on this machine, if known.
    pub local_size: Option<usize>,
    /// Whether a limit on this process's threads is its own: the agent of `torchrun` starts all ranks of a machine
    /// under its own limit.
    pub binds: bool,
    /// Where the ranks find each other.
    pub meeting: Meeting,
}

/// Where ranks find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    /// At a port of rank 0's machine.
    At {
        /// The machine's name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// MPI connects them.
    Mpi,
}

/// As many as `batch.world_size` takes.
const MOST_RANKS: usize = 1 << 16;

/// The variables of one launcher.
struct Names {
    launcher: &'static str,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    /// Whether a single process counts as launched; if not, it may start ranks of its own.
    alone: bool,
}

/// The first launcher whose variables are set wins. `RANK` comes first, since it is set on purpose even below
/// another launcher, and `mpirun` precedes `srun`, since it may run inside an allocation of SLURM's.
const LAUNCHERS: [Names; 4] = [
    Names {
        launcher: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_size: "LOCAL_WORLD_SIZE",
        alone: true,
    },
    Names {
        launcher: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        alone: false,
    },
    // set for a step that `srun` started; the script of `sbatch` has SLURM_NTASKS too, but runs only once
    Names {
        launcher: "srun",
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
        alone: false,
    },
    Names {
        launcher: "mpiexec",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        alone: false,
    },
];

/// Reads the placement of this process from its environment; `None` if no launcher started it.
///
/// # Errors
/// When a launcher's variables contradict each other or a needed one is missing. The message names the
/// variable and what to do.
pub fn place(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Placement>, String> {
    let number = |name: &str| -> Result<Option<usize>, String> {
        let Some(text) = variable(name) else { return Ok(None) };
        let number = text.trim().parse();
        number.map(Some).map_err(|_| format!("{name} is `{text}`, which is not a number of ranks"))
    };
    let Some(names) = LAUNCHERS.iter().find(|n| variable(n.rank).is_some() && variable(n.size).is_some())
    else {
        return Ok(None);
    };
    let (Some(rank), Some(size)) = (number(names.rank)?, number(names.size)?) else { return Ok(None) };
    if size == 0 || (size == 1 && !names.alone) {
        return Ok(None);
    }
    if size > MOST_RANKS {
        return Err(format!(
            "{} = {size} is more than the {MOST_RANKS} ranks that a run can have",
            names.size
        ));
    }
    if rank >= size {
        return Err(format!(
            "{} = {rank} is not below {} = {size}: ranks count from 0",
            names.rank, names.size
        ));
    }
    let local_rank = number(names.local_rank)?.unwrap_or(0);
    let local_size = match (names.launcher, variable(names.local_size)) {
        // a list, with one number for each node
        ("srun", Some(list)) => {
            let node = variable("SLURM_NODEID").and_then(|node| node.trim().parse().ok()).unwrap_or(0);
            tasks_of(&list, node)
        }
        _ => number(names.local_size)?,
    };
    if let Some(here) = local_size.filter(|here| !(1..=size).contains(here)) {
        return Err(format!(
            "{} says that {here} of the {size} ranks are on this machine: it must be between 1 and {} = {size}",
            names.local_size, names.size
        ));
    }
    if let Some(here) = local_size.filter(|here| local_rank >= *here) {
        return Err(format!(
            "{} = {local_rank} is not below the {} that {} says are on this machine: ranks count from 0",
            names.local_rank,
            count(here, "rank"),
            names.local_size
        ));
    }
    Ok(Some(Placement {
        launcher: format!("{} ({} = {size})", names.launcher, names.size),
        rank,
        size,
        local_rank,
        local_size,
        // which `torchrun` sets for the ranks that it starts
        binds: variable("TORCHELASTIC_RUN_ID").is_none(),
        meeting: meeting(names, size, variable)?,
    }))
}

fn meeting(names: &Names, size: usize, variable: &dyn Fn(&str) -> Option<String>) -> Result<Meeting, String> {
    if let (Some(host), Some(port)) = (variable("MASTER_ADDR"), variable("MASTER_PORT")) {
        let given: u16 = port
            .trim()
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| format!("MASTER_PORT is `{port}`, which is not a port (1 to 65535)"))?;
        // torchrun itself listens on MASTER_PORT
        let taken = variable("TORCHELASTIC_RUN_ID").is_some();
        return Ok(Meeting::At {
            host,
            port: if taken { given.checked_add(1).unwrap_or(given - 1) } else { given },
        });
    }
    match names.launcher {
        "mpirun" | "mpiexec" => Ok(Meeting::Mpi),
        // set by `srun --mpi=pmix` and `--mpi=pmi2`
        "srun"
            if cfg!(feature = "mpi")
                && ["PMIX_RANK", "PMI_RANK"].iter().any(|name| variable(name).is_some()) =>
        {
            Ok(Meeting::Mpi)
        }
        "torchrun" if size == 1 => Ok(Meeting::At { host: "127.0.0.1".to_owned(), port: 0 }),
        "srun" => {
            let nodes = variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST"));
            let host = nodes.as_deref().and_then(first_node).ok_or(
                "srun did not say on which nodes it started the ranks (SLURM_STEP_NODELIST); \
                 set MASTER_ADDR and MASTER_PORT",
            )?;
            let number = |name| variable(name).and_then(|id| id.trim().parse::<u64>().ok()).unwrap_or(0);
            let step = number("SLURM_JOB_ID").wrapping_add(number("SLURM_STEP_ID").wrapping_mul(101));
            // Different for neighbouring jobs and steps, and below 32,768, from where Linux takes the ports of
            // outgoing connections: one of those could hold the port just then.
            Ok(Meeting::At { host, port: 20_000 + (step % 12_000) as u16 })
        }
        launcher => Err(format!(
            "{launcher} started {} ({} and {}), but MASTER_ADDR and MASTER_PORT do not say where rank 0 is",
            count(size, "rank"),
            names.rank,
            names.size
        )),
    }
}

/// The number of tasks on node `node`, counted from 0, in a list that SLURM abbreviates: `8(x2),4` means 8, 8
/// and 4. A single number holds for every node.
fn tasks_of(list: &str, node: usize) -> Option<usize> {
    let mut nodes = Vec::new();
    for part in list.trim().split(',') {
        let (tasks, times) = part.split_once("(x").unwrap_or((part, "1)"));
        let times: usize = times.strip_suffix(')')?.parse().ok()?;
        nodes.extend(std::iter::repeat_n(tasks.trim().parse::<usize>().ok()?, times.min(1 << 16)));
    }
    if nodes.len() == 1 { nodes.first().copied() } else { nodes.get(node).copied() }
}

/// The first of a list of nodes that SLURM abbreviates: `a07` for `a[07-09,12],b1`, `r1i0` for `r[1-2]i[0-3]`.
fn first_node(list: &str) -> Option<String> {
    let mut is_within = false;
    let is_of_first = |c: &char| {
        is_within = *c == '[' || is_within && *c != ']';
        is_within || *c != ','
    };
    let mut name: String = list.chars().take_while(is_of_first).collect();
    while let Some((before, rest)) = name.split_once('[') {
        let (ranges, after) = rest.split_once(']')?;
        let first = ranges.split([',', '-']).next()?;
        name = format!("{before}{first}{after}");
    }
    Some(name).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Placement>, String> {
        let find =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        place(&find)
    }

    fn at(host: &str, port: u16) -> Meeting {
        Meeting::At { host: host.to_owned(), port }
    }

    #[test]
    fn each_launcher_is_understood() {
        let torchrun = [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
        let master = [("MASTER_ADDR", "node1"), ("MASTER_PORT", "29500")];
        let place = of(&[torchrun.as_slice(), &master].concat()).expect("complete").expect("launched");
        assert_eq!((place.rank, place.size, place.local_rank, place.local_size), (3, 8, 1, Some(2)));
        assert_eq!(place.meeting, at("node1", 29500));
        assert!(place.binds, "set by hand, as a script of srun does");
        let agent = [torchrun.as_slice(), &master, &[("TORCHELASTIC_RUN_ID", "none")]].concat();
        assert!(!of(&agent).expect("complete").expect("launched").binds);
        // torchrun itself listens on MASTER_PORT
        let elastic = [torchrun.as_slice(), &master, &[("TORCHELASTIC_RUN_ID", "x")]].concat();
        assert_eq!(of(&elastic).expect("complete").expect("launched").meeting, at("node1", 29501));

        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ];
        let place = of(&mpi).expect("complete").expect("launched");
        assert_eq!((place.rank, place.size, place.meeting), (1, 4, Meeting::Mpi));

        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "16"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NODELIST", "gpu[07-09,12],cpu1"),
            ("SLURM_JOB_ID", "41234"),
        ];
        let place = of(&slurm).expect("complete").expect("launched");
        assert_eq!((place.rank, place.size, place.local_rank), (5, 16, 1));
        assert_eq!(place.meeting, at("gpu07", 25234));
        // SLURM sets these variables for MPI libraries; only a build with MPI heeds them
        let place = of(&[slurm.as_slice(), &[("PMI_RANK", "5"), ("PMI_SIZE", "16")]].concat());
        let place = place.expect("complete").expect("launched");
        let expected = if cfg!(feature = "mpi") { Meeting::Mpi } else { at("gpu07", 25234) };
        assert_eq!((place.rank, place.meeting), (5, expected));
    }

    #[test]
    fn steps_of_slurm_meet_at_ports_that_no_outgoing_connection_takes() {
        for job in ["0", "1", "12767", "39999", "4294967295", "18446744073709551615"] {
            let slurm = [
                ("SLURM_PROCID", "0"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_STEP_NODELIST", "n1"),
                ("SLURM_JOB_ID", job),
                ("SLURM_STEP_ID", "3"),
            ];
            let meeting = of(&slurm).expect("complete").expect("launched").meeting;
            assert!(matches!(&meeting, Meeting::At { port: 20_000..32_768, .. }), "job {job}: {meeting:?}");
        }
    }

    #[test]
    fn a_process_without_a_launcher_is_alone() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("RANK", "0")]), Ok(None));
        // a script of sbatch is not a step of srun
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), Ok(None));
        assert_eq!(of(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), Ok(None));
        // but a single rank of torchrun's counts as launched
        assert!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]).is_ok_and(|place| place.is_some()));
    }

    #[test]
    fn contradictions_are_named() {
        for (variables, word) in [
            ([("RANK", "4"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")], "RANK = 4"),
            ([("RANK", "x"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")], "`x`"),
            ([("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "0")], "MASTER_PORT"),
            ([("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("LOCAL_RANK", "1")], "MASTER_PORT"),
            (
                [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "0")],
                "that 0 of",
            ),
            (
                [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "3")],
                "that 3 of",
            ),
            ([("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "y")], "`y`"),
            (
                [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "1")],
                "LOCAL_RANK = 1",
            ),
        ] {
            let error = of(&variables).expect_err("a contradiction");
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn tasks_of_a_node_are_read_from_slurm_lists() {
        for (list, node, tasks) in [
            ("4", 0, Some(4)),
            ("4", 3, Some(4)),
            ("8(x2),4", 1, Some(8)),
            ("8(x2),4", 2, Some(4)),
            ("8(x2),4", 3, None),
            ("", 0, None),
        ] {
            assert_eq!(tasks_of(list, node), tasks, "{list} {node}");
        }
    }

    #[test]
    fn the_first_node_is_read_from_slurm_lists() {
        for (list, first) in [
            ("n1", "n1"),
            ("n1,n2", "n1"),
            ("n[3-5]", "n3"),
            ("n[003,005-7]", "n003"),
            ("login,n[3-5]", "login"),
            ("rack[2-3]-a,x", "rack2-a"),
            ("r[1-2]i[0-3],x", "r1i0"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!(first_node(""), None);
    }
}
