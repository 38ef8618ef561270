// Numbers in sentences: with every digit, and with their noun.

export const whole = (number) => Number(number).toLocaleString("en");
export const many = (count, noun) => `${whole(count)} ${noun}${Number(count) === 1 ? "" : "s"}`;
