#!/bin/sh
# A training in POSIX shell: it follows the scheduler's batch size and learning rate, reports,
# stops when asked to and goes on from its checkpoint. Any language can do the same: all of it is
# reading and writing small files (mlflow_rlsched/protocol.py says what is in them).
#
#     train.sh BATCH_SIZE LEARNING_RATE SAMPLES
#
# What it learns is the mean of some noisy numbers: 3.
set -eu
export LC_ALL=C  # numbers have a point

batch_size=$1 base_rate=$2 total=$3
base_batch=$batch_size lr_scale=1 seq='' action=continue
step=0 samples=0 weight=0 loss=0 reported_at=0

# Appends a line to the report; its argument comes before what every line has.
report() {
    [ -n "${RLSCHED_ATTEMPT_DIR:-}" ] || return 0
    rate=$(awk "BEGIN { print $base_rate * $lr_scale }")
    printf '{%s"time":%s,"step":%s,"samples":%s,"batch_size":%s,"learning_rate":%s%s}\n' \
        "$1" "$(date +%s)" "$step" "$samples" "$batch_size" "$rate" "${seq:+,\"applied_seq\":$seq}" \
        >>"$RLSCHED_ATTEMPT_DIR/report.jsonl"
}

# Prints a field of the directive; nothing where it is absent or null.
field() {
    rest=${directive#*\""$1"\":}
    [ "$rest" != "$directive" ] || return 0
    rest=${rest%%[,\}]*}
    rest=${rest# }
    [ "$rest" = null ] || printf '%s' "$rest"
}

# Does what is asked. The file is replaced as a whole, so it is never half a directive.
obey() {
    directive=''
    [ -z "${RLSCHED_ATTEMPT_DIR:-}" ] || [ ! -r "$RLSCHED_ATTEMPT_DIR/directive.json" ] ||
        IFS= read -r directive <"$RLSCHED_ATTEMPT_DIR/directive.json" || :
    if [ -z "$directive" ] || [ "$(field attempt)" != "$RLSCHED_ATTEMPT" ]; then return 0; fi
    now=$(field seq)
    if [ "$now" = "$seq" ]; then return 0; fi
    seq=$now action=$(field action)
    batch_size=$(field batch_size) lr_scale=$(field lr_scale)
    batch_size=${batch_size:-$base_batch}
}

# A rename leaves the old state or the new one. An attempt that was given up leaves it alone.
save() {
    if [ -z "${RLSCHED_CHECKPOINT_DIR:-}" ] || [ -e "$RLSCHED_ATTEMPT_DIR/void" ]; then return 0; fi
    mkdir -p "$RLSCHED_CHECKPOINT_DIR"
    printf '%s %s %s\n' "$step" "$samples" "$weight" >"$RLSCHED_CHECKPOINT_DIR/state.$$"
    mv "$RLSCHED_CHECKPOINT_DIR/state.$$" "$RLSCHED_CHECKPOINT_DIR/state"
    report '"event":"checkpointed",'
}

if [ -r "${RLSCHED_CHECKPOINT_DIR:-/nowhere}/state" ]; then
    read -r step samples weight <"$RLSCHED_CHECKPOINT_DIR/state"
fi
obey
report '"event":"hello","can":["batch_size","learning_rate","resume"],'

while [ "$samples" -lt "$total" ]; do
    step=$((step + 1))
    size=$batch_size
    [ "$size" -le $((total - samples)) ] || size=$((total - samples))
    # shellcheck disable=SC2046  # two words are wanted
    set -- $(awk -v weight="$weight" -v rate="$base_rate" -v scale="$lr_scale" -v size="$size" \
        -v seed="$step" 'BEGIN {
            srand(seed)
            for (i = 0; i < size; i++) {
                error = weight - (2.5 + rand())
                gradient += 2 * error / size
                loss += error * error / size
            }
            printf "%.9f %.9f\n", weight - rate * scale * gradient, loss
        }')
    weight=$1 loss=$2 samples=$((samples + size))
    if [ "$(date +%s)" != "$reported_at" ]; then
        reported_at=$(date +%s)
        progress=$(awk "BEGIN { print $samples / $total }")
        report "\"loss\":$loss,\"progress\":$progress,"
    fi
    obey
    case $action in
    '"checkpoint"')
        save
        action=continue
        ;;
    '"stop"')
        save
        report '"event":"stopped",'
        exit 75
        ;;
    esac
done
report "\"event\":\"done\",\"loss\":$loss,"
echo "learned $weight from $samples samples"
